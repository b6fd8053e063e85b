-- From now on a location takes only orders of this generation or a later one. ARGV: generation. Returns which it is.
local g = redis.call('HGET', KEYS[1], 'g') or '0'
if tonumber(g) >= tonumber(ARGV[1]) then return g end
redis.call('HSET', KEYS[1], 'g', ARGV[1])
return ARGV[1]
