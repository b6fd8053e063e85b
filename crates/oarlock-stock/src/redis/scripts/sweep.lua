-- Gives back holds that are over. ARGV: how many at most. Returns how many.
local units, reservations, ends = KEYS[1], KEYS[2], KEYS[3]
local now = redis.call('TIME')
local over = redis.call('ZRANGEBYSCORE', ends, '-inf', now[1] * 1000 + math.floor(now[2] / 1000), 'LIMIT', 0, ARGV[1])
for _, id in ipairs(over) do
  local quantity = string.match(redis.call('HGET', reservations, id) or '', '^(%d+) h$')
  if quantity then
    redis.call('HINCRBY', units, 'h', -quantity)
    redis.call('HINCRBY', units, 'n', quantity)
    redis.call('HINCRBY', units, 'c', 1)
    redis.call('HSET', reservations, id, quantity .. ' r')
  end
  redis.call('ZREM', ends, id)
end
return #over
