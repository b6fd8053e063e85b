-- Gives back holds that are over, and forgets ids that ended long ago. ARGV: how many of each at most, for how many
-- milliseconds ids are remembered. Returns how many were given back. See settle.lua for the scores.
local units, reservations, ends = KEYS[1], KEYS[2], KEYS[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', ends, -now, '(0', 'LIMIT', 0, ARGV[1])) do
  redis.call('HDEL', reservations, id)
  redis.call('ZREM', ends, id)
end
local over = redis.call('ZRANGEBYSCORE', ends, 0, now, 'LIMIT', 0, ARGV[1])
for _, id in ipairs(over) do
  local quantity = string.match(redis.call('HGET', reservations, id) or '', '^(%d+) h$')
  if quantity then
    redis.call('HINCRBY', units, 'h', -quantity)
    redis.call('HINCRBY', units, 'n', quantity)
    redis.call('HINCRBY', units, 'c', 1)
    redis.call('HSET', reservations, id, quantity .. ' r')
    redis.call('ZADD', ends, -(now + tonumber(ARGV[2])), id)
  else
    redis.call('ZREM', ends, id)
  end
end
return #over
