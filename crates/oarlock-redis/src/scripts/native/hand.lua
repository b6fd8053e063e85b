-- How a turn is told. Where turns are in order and the waiter can be handed its own, the fence comes with it: it holds then,
-- without asking again, but only for as long as a turn lasts, until it says so. What it is told is the time at which it sent
-- its last request, by its own clock: it believes from there on, and so not for longer than the server does.

local TURN = 2000000

-- Lets a waiter hold that has not asked for it yet.
local function hand(e, fence)
  e.fence, e.handed, e.turn, e.lease = fence, now, nil, math.min(e.lease, TURN)
  e.till = math.min(e.till, now + TURN)
end

local function tell(e)
  local word = e.id
  if e.handed then
    word = string.format('%s %.0f %s %.0f', e.id, e.fence, e.sent, e.lease)
    if memo then word = word .. ' ' .. memo end
  end
  redis.call(PUBLISH, mail .. e.session, word)
end

