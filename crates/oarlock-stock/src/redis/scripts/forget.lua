-- A transfer whose source has forgotten it is over. It is remembered for a day: a slow client may still bring it.
-- ARGV: transfer.
local arrived = KEYS[5]
local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', arrived, 'XX', now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', arrived, '-inf', now - 86400)
return 1
