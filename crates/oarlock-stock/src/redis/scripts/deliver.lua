-- Units come into the store room, once for each delivery. KEYS: as those of a location; the map; the deliveries.
-- ARGV: delivery, how many. Returns how many that delivery brought.
local units, map, deliveries = KEYS[1], KEYS[6], KEYS[7]
if redis.call('EXISTS', map) == 0 then return false end
if redis.call('HSETNX', deliveries, ARGV[1], ARGV[2]) == 1 then
  redis.call('HINCRBY', units, 'n', ARGV[2])
  redis.call('HINCRBY', units, 'c', 1)
  redis.call('HINCRBY', map, 'delivered', ARGV[2])
  redis.call('HINCRBY', map, 'moves', 1)
end
return redis.call('HGET', deliveries, ARGV[1])
