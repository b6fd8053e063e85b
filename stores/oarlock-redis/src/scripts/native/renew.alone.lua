-- Keeps a claim alive, holder or waiter.
--
-- KEYS, ARGV[1]  see load.lua
-- ARGV[2..]      id, behind, lease, lease of a place, what to do with the fences ('keep', 'least' or 'reserve'),
--                the least fence or how many, value, memo ('' = none, else '=' and the bytes),
--                held: 1 if the client knows that it holds, else 0; sent: see load.lua
-- answer         'alive', lease, largest fence or -1 for a waiter, by and why if it was asked to end
--                | 'gone' and by, why if it was broken | 'exhausted'
--
-- The short way, for the only holder of a resource, with or without waiters.

local id, behind, ttl, waiter_ttl = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local how, number, value, left = ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9]
local held, sent = ARGV[10] == '1', tonumber(ARGV[11])

-- Names that ran out leave the index by the renewals of others. It comes first: after a write that needs no memory, a
-- full server lets the others pass, and so never ends a hold.
redis.call('ZREMRANGEBYSCORE', index, '-inf', math.floor(now / 1000))

if only == id and how == 'keep' and soon > now then
  local till, lease, fence, _, handed, _, weight, _, _, seq, since, _, session, kind =
    struct.unpack(ENTRY, packed, HEAD_SIZE + 1)
  -- What was handed is held once the client says so.
  if (handed == 0 or held) and is_timely(till, lease) then
    local ends = now + ttl
    if count == 0 then
      soon, last = ends, math.ceil(ends / 1000)
    else
      soon, last = math.min(soon, ends), math.max(last, math.ceil(ends / 1000))
    end
    local me = struct.pack(
      ENTRY, ends, ttl, fence, 0, 0, 0, weight, 0, behind, seq, handed ~= 0 and handed or since, id, session, #kind,
      kind, #value, value, 0, '', 0, ''
    )
    if left == '' then enlist(keep(me)) else enlist(keep(me, 'memo', string.sub(left, 2))) end
    return { 'alive', ttl, fence, false, false }
  end
end

-- The next short way, for a waiter whose turn has not come: nothing changes for the others.
if not held and how == 'keep' and soon > now then
  local place = place_of(id)
  if place then
    stay(place, behind, waiter_ttl, sent)
    return { 'alive', waiter_ttl, -1 }
  end
end

