-- Changes the map, if it is still the one that was read. KEYS: the map. ARGV: generation that was read (0: none),
-- segments, next generation.
local generation = redis.call('HGET', KEYS[1], 'generation') or '0'
if generation ~= ARGV[1] then return 0 end
local before = redis.call('HGET', KEYS[1], 'segments')
if before and before ~= ARGV[2] then
  local past = redis.call('HGET', KEYS[1], 'past') or ''
  if not string.find(' ' .. past .. ' ', ' ' .. before .. ' ', 1, true) then
    redis.call('HSET', KEYS[1], 'past', past == '' and before or past .. ' ' .. before)
  end
end
redis.call('HSET', KEYS[1], 'segments', ARGV[2], 'generation', ARGV[3])
return 1
