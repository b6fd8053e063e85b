-- Ends a claim, holder or waiter.
--
-- KEYS, ARGV[1]  see load.lua
-- ARGV[2..]      id, how ('done', 'withdrawn' or 'broken');
--                done: memo ('' = none, else '=' and the bytes); broken: by, why, grace
-- answer         'released' | 'absent' | 'asked', and 1 if a claim waits, else 0
--
-- The short way, for the only holder of a resource without waiters.

local id, how = ARGV[2], ARGV[3]
local left = how == 'done' and ARGV[4] or ''

if only == id and count == 0 and how == 'done' and soon > now then
  cap, holders, only, head, tail = -1, 0, NO_CLAIM, 0, 0
  redis.call('HDEL', key, id)
  if left == '' then keep('') else keep('', 'memo', string.sub(left, 2)) end
  redis.call('ZREM', index, key)
  redis.call(PUBLISH, key, '')
  return { 'released', 0 }
end

