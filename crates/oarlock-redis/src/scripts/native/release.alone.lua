-- Ends a claim, holder or waiter.
--
-- KEYS, ARGV[1]  see load.lua
-- ARGV[2..]      id, how ('done', 'withdrawn' or 'broken');
--                done: memo ('' = none, else '=' and the bytes); broken: by, why, grace
-- answer         'released' | 'absent' | 'asked', and 1 if somebody waits, else 0
--
-- The short way, for the only holder of a resource that nobody waits for.

local id, how = ARGV[2], ARGV[3]

local only = state.entries[1]
if how == 'done' and only and not state.entries[2] and not state.count and only.id == id and only.fence and not only.by
  and only.till > now
then
  redis.call('HDEL', key, id, 'state')
  if ARGV[4] ~= '' then redis.call('HSET', key, 'memo', string.sub(ARGV[4], 2)) end
  redis.call('ZREM', index, key)
  redis.call(PUBLISH, key, '')
  return { 'released', 0 }
end

