-- Sends units on their way. ARGV: transfer, target, how many at most. Returns how many it sent.
local units, under_way, over = KEYS[1], KEYS[4], KEYS[5]
if redis.call('ZSCORE', over, ARGV[1]) then return 0 end
local sent = redis.call('HGET', under_way, ARGV[1])
if sent then return tonumber(string.match(sent, '^(%d+)')) end
local left = tonumber(redis.call('HGET', units, 'n') or '0')
local sending = math.min(left, tonumber(ARGV[3]))
if sending <= 0 then return 0 end
redis.call('HINCRBY', units, 'n', -sending)
redis.call('HSET', under_way, ARGV[1], sending .. ' ' .. ARGV[2])
return sending
