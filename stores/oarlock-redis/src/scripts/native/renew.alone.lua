-- Keeps a claim alive, holder or waiter.
--
-- KEYS     see load.lua
-- ARGV[1]  id, behind, lease, lease of a position, what to do with the fences (see KEEP), the least fence or how many,
--          held: 1 if the client knows that it holds, else 0; sent: see load.lua; value; how long the memo must be
--          remembered at least, and the memo, or nothing
-- answer   'alive', lease, largest fence or -1 for a waiter, by and why if it was asked to end
--          | 'gone' and by, why if it was broken | 'exhausted'
--
-- The short way, for the only holder of a resource, with or without waiters.

local KEEP, LEAST, RESERVE = 0, 1, 2

local id, behind, ttl, waiter_ttl, how, number, held, sent, value, after =
  struct.unpack('>c16I4I8I8BI8Bi8I4c0', ARGV[1])
local leaves = #ARGV[1] >= after
held = held == 1

local function leave_memo()
  if leaves then
    left = 1
    redis.call('HSET', key, 'memo', string.sub(ARGV[1], after + 8))
    -- The key never ends sooner from then on: what stores the state only prolongs it.
    local kept = now + struct.unpack('>I8', ARGV[1], after)
    if ends * 1000 < kept then
      ends = math.ceil(kept / 1000)
      redis.call('PEXPIREAT', key, ends)
    end
  end
end

-- Names that ran out leave the index by the renewals of others. It comes first: after a write that needs no memory, a
-- full server lets the others pass, and so never ends a hold.
redis.call('ZREMRANGEBYSCORE', index, '-inf', math.floor(now / 1000))

local holds = only == id and how == KEEP and soon > now and redis.call('HGET', key, 'w' .. sole)
if holds then
  local till, lease, fence, _, handed, _, since, seq, weight = struct.unpack(ENTRY, holds)
  local owner, mailbox, kind, _, label = struct.unpack(BODY, holds, ENTRY_SIZE + 1)
  -- What was handed is held once the client says so.
  if owner == id and (handed == 0 or held) and is_timely(till, lease) then
    till = now + ttl
    soon, last = count == 0 and till or math.min(soon, till), count == 0 and till or math.max(last, till)
    enlist()
    leave_memo()
    keep(
      'w' .. sole,
      struct.pack(ENTRY, till, ttl, fence, 0, 0, 0, handed ~= 0 and handed or since, seq, weight, 0, behind)
        .. struct.pack(BODY, id, #mailbox, mailbox, #kind, kind, #value, value, #label, label)
    )
    return { 'alive', ttl, fence, false, false }
  end
end

-- The next short way, for a waiter whose turn has not come: nothing changes for the others.
if not held and how == KEEP and soon > now and only ~= id then
  local position = position_of(id, redis.call('HGET', key, id))
  if position then
    stay(position, behind, waiter_ttl, sent)
    return { 'alive', waiter_ttl, -1 }
  end
end

