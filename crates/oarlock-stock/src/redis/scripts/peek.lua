-- What a location has, what has left it and may not have arrived yet, and how often something came in.
local units, under_way = KEYS[1], KEYS[4]
local left = 0
for _, note in ipairs(redis.call('HVALS', under_way)) do
  left = left + tonumber(string.match(note, '^(%d+)'))
end
local has = redis.call('HMGET', units, 'n', 'c')
return {tonumber(has[1] or '0'), left, tonumber(has[2] or '0')}
