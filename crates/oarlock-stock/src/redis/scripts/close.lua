-- They have come in, or will not. KEYS: the map; what is coming in. ARGV: what came.
local map, coming = KEYS[1], KEYS[2]
if redis.call('ZREM', coming, ARGV[1]) == 1 then redis.call('HINCRBY', map, 'coming', -1) end
redis.call('HINCRBY', map, 'moves', 1)
return 1
