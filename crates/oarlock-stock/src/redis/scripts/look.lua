-- What a place has, and what has left it and may not have arrived yet.
local units, under_way = KEYS[1], KEYS[4]
local left = 0
for _, note in ipairs(redis.call('HVALS', under_way)) do
  left = left + tonumber(string.match(note, '^(%d+)'))
end
return {tonumber(redis.call('HGET', units, 'n') or '0'), left}
