-- Ends a claim, holder or waiter.
--
-- KEYS     see load.lua
-- ARGV[1]  how (see DONE), id; done: '=' and the memo, or nothing; broken: by, why, grace
-- answer   2 if it is released and no claim waits, 3 if one does
--          | 'released' | 'absent' | 'asked', and 1 if a claim waits, else 0
--
-- The short way, for the only holder of a resource without waiters.

local DONE, WITHDRAWN, BROKEN = 0, 1, 2

local how, id = struct.unpack('>Bc16', ARGV[1])
local leaves = how == DONE and #ARGV[1] > 17

-- What a short way has decided: see store.lua. A full server must not refuse a release.
local answer, field, entry, number
local write = redis.pcall

if only == id and count == 0 and how == DONE and soon > now then
  if streak < OFTEN then
    redis.call('ZREM', index, key)
    listed = 0
  end
  -- The next claim has the number 1 and takes this field. Where it comes soon, to empty it is cheaper than to remove
  -- it. A memo needs memory: a write that needs none goes before it.
  if sole == 1 and streak == OFTEN and not leaves then
    field, entry = 'w1', ''
  else
    redis.call('HDEL', key, 'w' .. sole)
  end
  if leaves then
    left = 1
    redis.call('HSET', key, 'memo', string.sub(ARGV[1], 19))
  end
  cap, holders, soon, head, tail, sole, only = -1, 0, now, 0, 0, 0, nil
  answer = 2
end

