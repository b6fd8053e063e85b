-- From now on a place takes only orders of this generation or a later one. ARGV: generation.
local g = tonumber(redis.call('HGET', KEYS[1], 'g') or '0')
if g < tonumber(ARGV[1]) then redis.call('HSET', KEYS[1], 'g', ARGV[1]) end
return 1
