-- Ends a hold. ARGV: id, 's' or 'r', for how many milliseconds its id is remembered. Returns what the id stands for
-- then.
local units, reservations, ends = KEYS[1], KEYS[2], KEYS[3]
local known = redis.call('HGET', reservations, ARGV[1])
if not known then return false end
local quantity = string.match(known, '^(%d+) h$')
if not quantity then return known end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Some of those that were ended long ago are forgotten with each that ends, so that they do not become more and more.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', ends, -now, '(0', 'LIMIT', 0, 10)) do
  redis.call('HDEL', reservations, id)
  redis.call('ZREM', ends, id)
end
redis.call('HINCRBY', units, 'h', -quantity)
redis.call('HINCRBY', units, ARGV[2] == 's' and 's' or 'n', quantity)
if ARGV[2] == 'r' then redis.call('HINCRBY', units, 'c', 1) end
redis.call('HSET', reservations, ARGV[1], quantity .. ' ' .. ARGV[2])
-- Those that are held are there by when that ends, those that have ended by the negative of when they are forgotten.
redis.call('ZADD', ends, -(now + tonumber(ARGV[3])), ARGV[1])
return quantity .. ' ' .. ARGV[2]
