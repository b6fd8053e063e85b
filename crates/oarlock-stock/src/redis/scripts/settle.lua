-- Ends a hold. ARGV: id, 's' or 'r'. Returns what the id stands for then.
local units, reservations, ends = KEYS[1], KEYS[2], KEYS[3]
local known = redis.call('HGET', reservations, ARGV[1])
if not known then return false end
local quantity = string.match(known, '^(%d+) h$')
if not quantity then return known end
redis.call('HINCRBY', units, 'h', -quantity)
redis.call('HINCRBY', units, ARGV[2] == 's' and 's' or 'n', quantity)
if ARGV[2] == 'r' then redis.call('HINCRBY', units, 'c', 1) end
redis.call('HSET', reservations, ARGV[1], quantity .. ' ' .. ARGV[2])
redis.call('ZREM', ends, ARGV[1])
return quantity .. ' ' .. ARGV[2]
