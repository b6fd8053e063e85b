-- A client that said a day ago that something comes in, and never that it came, is gone. KEYS: the map; what is
-- coming in.
local map, coming = KEYS[1], KEYS[2]
local gone = redis.call('ZREMRANGEBYSCORE', coming, '-inf', redis.call('TIME')[1] - 86400)
if gone > 0 then redis.call('HINCRBY', map, 'coming', -gone) end
return gone
