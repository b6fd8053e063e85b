-- How a turn is told. Where turns are in order and the waiter can be handed its own, the fence comes with it: it holds
-- then, without asking again, but only for as long as a turn lasts, until it says so. What it is told is the time at
-- which it sent its last request, by its own clock: it believes from there on, and so not for longer than the server
-- does.

-- A waiter that was silent for so long may be dead; with no more waiters than this, no other would notice soon.
local SILENT, FEW = 200000, 32

-- How many clients have heard it.
local function tell(id, session, fence, sent, lease)
  local word = id
  if fence then
    word = string.format('%s %.0f %.0f %.0f', id, fence, sent, lease)
    if memo then word = word .. ' ' .. memo end
  end
  return redis.call(PUBLISH, mail .. session, word)
end

