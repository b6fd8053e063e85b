-- Units are about to come in somewhere: a client that looked before must look again. KEYS: the map; what is coming in.
-- ARGV: what is coming.
local map, coming = KEYS[1], KEYS[2]
if redis.call('ZADD', coming, redis.call('TIME')[1], ARGV[1]) == 1 then redis.call('HINCRBY', map, 'coming', 1) end
redis.call('HINCRBY', map, 'moves', 1)
return 1
