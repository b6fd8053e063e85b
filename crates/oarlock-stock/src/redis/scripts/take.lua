-- Takes units at the home of an id. ARGV: generation, id, quantity, hold in ms or -1.
local units, reservations, ends = KEYS[1], KEYS[2], KEYS[3]
local id, quantity, hold = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if redis.call('HGET', units, 'g') ~= ARGV[1] then return {'moved'} end
local known = redis.call('HGET', reservations, id)
if known then return {'known', known} end
local left = tonumber(redis.call('HGET', units, 'n') or '0')
if left < quantity then return {'short'} end
redis.call('HINCRBY', units, 'n', -quantity)
redis.call('HINCRBY', units, 'h', quantity)
redis.call('HSET', reservations, id, quantity .. ' h')
if hold >= 0 then
  local now = redis.call('TIME')
  redis.call('ZADD', ends, now[1] * 1000 + math.floor(now[2] / 1000) + hold, id)
end
return {'taken'}
