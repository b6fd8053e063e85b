-- Writes a value, unless it was written with a larger fence before.
--
-- KEYS[1]  the value, a hash: fence, value
-- ARGV     fence, value
-- answer   0 | the larger fence that is there | -1: the key holds something else, and is left as it is

local stored = redis.pcall('HMGET', KEYS[1], 'fence', 'value')
if stored.err then
  if string.find(stored.err, 'WRONGTYPE', 1, true) then return -1 end
  return stored
end
-- Not 'nan', which is larger than nothing: every fence would pass.
local last = string.find(stored[1] or '0', '^%d+$') and tonumber(stored[1] or 0)
if not last or (not stored[1] and redis.call('EXISTS', KEYS[1]) == 1) then return -1 end
if last > tonumber(ARGV[1]) then return last end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
return 0
