-- The next short way, for a claim that wants everything while another holds and no claim has expired: it goes to the
-- end.

local CROWD = 32

if wait and weight == 0 and said == 'any' and holders > 0 and soon > now and not known then
  local ahead, soonest, till = holders + count, soon, now + waiter_ttl
  tail = tail + 1
  if count == 0 then head = tail - 1 end
  count, soon = count + 1, math.min(soon, till)
  local later = math.ceil(till / 1000)
  local is_later = later > last
  if is_later then last = later end
  local waits = arriving(tail, waiter_ttl, 0, sent)
  local anew = keep(string.sub(packed, HEAD_SIZE + 1), 'w' .. tail, waits, id, labelled(tail))
  if is_later or anew then enlist(anew) end
  redis.call(PUBLISH, key, '')
  return { 'pending', ahead, soonest - now }
end

-- The same for one that has its place already and looks again, where many wait: it does not fit where another holds and
-- it wants everything; nor where no claim was notified of a turn, because then all that fit had been notified. How many
-- of those with smaller numbers are still there is not counted: there are no more than this.
local is_blocked = weight == 0 and holders > 0 and said == 'any' or soon > now + TURN and (said == 'any' or cap == asked)
if wait and is_blocked and soon > now and count > CROWD then
  local place = place_of(id)
  if place then
    local ahead, soonest = holders + math.min(place.seq - head, count) - 1, soon
    stay(place, behind, waiter_ttl, sent)
    return { 'pending', ahead, soonest - now }
  end
end

