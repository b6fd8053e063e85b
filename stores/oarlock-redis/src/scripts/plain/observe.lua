-- Has changes published again, for an observer that listens now.
--
-- KEYS  see load.lua

redis.pcall('HDEL', KEYS[2], 'quiet')
return 1
