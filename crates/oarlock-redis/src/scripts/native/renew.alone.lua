-- Keeps a claim alive, holder or waiter.
--
-- KEYS, ARGV[1]  see load.lua
-- ARGV[2..]      id, behind, lease, lease of a place, what to do with the fences ('keep', 'least' or 'reserve'),
--                the least fence or how many, value, memo ('' = none, else '=' and the bytes),
--                held: 1 if the client knows that it holds, else 0; sent: see attempt.free.lua
-- answer         'alive', lease, largest fence or -1 for a waiter, by and why if somebody asked for its end
--                | 'gone' and by, why if it was broken | 'exhausted'
--
-- The short way, for the only holder of a resource that nobody waits for.

local id, behind, ttl, place_ttl = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local how, number, value, left = ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9]
local held, sent = ARGV[10] == '1', ARGV[11]

-- Names that ran out leave the index by the renewals of others. It comes first: after a write that needs no memory, a full
-- server lets the others pass, and so never ends a hold.
redis.call('ZREMRANGEBYSCORE', index, '-inf', math.floor(now / 1000))

local only = state.entries[1]
if how == 'keep' and only and not state.entries[2] and not state.count and only.id == id and not only.handed
  and not only.by and only.till > now
then
  only.till, only.lease = now + ttl, ttl
  if value == '' then only.value = nil else only.value = string.sub(value, 2) end
  local last_ms = math.ceil(only.till / 1000)
  state.last = last_ms
  local ends_ms = ends(last_ms)
  redis.call('HSET', key, 'state', cmsgpack.pack(state))
  if left ~= '' then redis.call('HSET', key, 'memo', string.sub(left, 2)) end
  if ends_ms then
    redis.call('HSET', key, 'ends', ends_ms)
    redis.call('PEXPIREAT', key, ends_ms)
  end
  enlist(last_ms, ends_ms)
  return { 'alive', ttl, only.fence, false, false }
end

