-- Ends a holder.
--
-- KEYS, ARGV[1]  see load.lua
-- ARGV[2..]      id, how ('done', 'withdrawn' or 'broken');
--                done: memo ('' = none, else '=' and the bytes); broken: by, why, grace
-- answer         'released' | 'absent' | 'asked', and -1: waiters are unknown | 'cannot ask'

local id, how = ARGV[2], ARGV[3]

-- A holder of another program can only be broken, by the id that it is shown with.
local h, at = find(id)
local is_ours = h and (ours[id] or h.owner == owner_of(id))
if not h or (how ~= 'broken' and not is_ours) then return finish({ 'absent', -1 }) end

local grace_ms = how == 'broken' and math.floor(tonumber(ARGV[6]) / 1000) or 0
-- Their programs cannot be asked: the watchdog would keep the hold, whatever its time.
if grace_ms > 0 and not is_ours then return finish({ 'cannot ask' }) end

dirty = true
if how == 'done' and ARGV[4] ~= '' then memo = string.sub(ARGV[4], 2) end
if how == 'broken' then
  local claim = ours[id]
  if claim then
    claim.by, claim.why = ARGV[4], ARGV[5]
    -- In a cluster a mailbox is not in the slot of the object: there its holder learns it from its next renewal.
    if PUBLISH == 'PUBLISH' then redis.call('PUBLISH', mail .. claim.session, id) end
  end
  if grace_ms > 0 then
    end_in(h, grace_ms, true)
    if claim then claim.till = now + h.left end
    -- Who waits sleeps until when it would have ended.
    if h.kind == 'mutex' then
      tell_lock()
    elseif h.kind == 'semaphore' then
      tell(PERMITS, h.weight)
    else
      tell(RW, '1')
    end
    return finish({ 'asked', -1 })
  end
  if claim then keep_ending(id, claim.by, claim.why) end
end
ours[id] = nil
-- A thread of theirs may hold for writing and for reading.
while h do
  free_hold(h, at)
  h, at = find(id)
end
return finish({ 'released', -1 })
