-- Takes units in, once for each transfer. ARGV: transfer, how many.
local units, arrived = KEYS[1], KEYS[5]
if redis.call('ZADD', arrived, 'NX', '+inf', ARGV[1]) == 1 then
  redis.call('HINCRBY', units, 'n', ARGV[2])
  redis.call('HINCRBY', units, 'c', 1)
end
return 1
