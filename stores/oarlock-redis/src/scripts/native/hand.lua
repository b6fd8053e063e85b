-- How a turn is told. Where turns are in order and the waiter can be handed its own, the fence comes with it: it holds
-- then, without asking again, but only for as long as a turn lasts, until it says so. What it is told is the time at
-- which it sent its last request, by its own clock: it believes from there on, and so not for longer than the server
-- does.

-- Publishes the id; with a grant also fence, sent and lease, and '=' and the memo if there is one. How many clients
-- received it.
local function tell(id, mailbox, fence, sent, lease)
  local notification = id
  if fence then
    notification = id .. struct.pack('>I8I8I8', fence, sent, lease)
    if left == 1 then notification = notification .. '=' .. (redis.call('HGET', key, 'memo') or '') end
  end
  return redis.call(PUBLISH, mailbox, notification)
end

