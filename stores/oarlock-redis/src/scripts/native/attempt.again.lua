-- The next short way, for one that has its position already and looks again, where many wait: it does not fit where
-- another holds and it wants everything; nor where no claim was notified of a turn, because then all that fit had
-- been notified. How many of those with smaller numbers are still there is not counted: there are no more than this.

local CROWD = 32

local is_blocked = weight == 0 and said == ANY or soon > now + TURN and (said == ANY or cap == asked)
if is_busy and is_blocked and count > CROWD then
  local position = position_of(id, known)
  if position then
    local ahead, soonest = math.min(position.seq - head - (only and 0 or 1), holders + count - 1), soon
    stay(position, behind, waiter_ttl, sent)
    return { 'pending', ahead, soonest - now }
  end
end

