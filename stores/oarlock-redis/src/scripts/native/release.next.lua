-- The next short way, for the only holder of a resource whose next in line wants everything, and can be handed it.

-- A waiter that was silent for so long may be dead; with no more waiters than this, no other would notice soon.
local SILENT, FEW = 200000, 32
-- Whether the claim that ends is removed already.
local is_removed = false

local next_field = only == id and count > 0 and how ~= BROKEN and soon > now and 'w' .. head + 1
local waits = next_field and redis.call('HGET', key, next_field)
if waits and #waits >= ENTRY_SIZE + 18 then
  local till, lease, _, _, _, sent, since, seq, weight, marks, behind, next, mailbox =
    struct.unpack('>I8I8I8I8I8i8I8I8I4BI4c16I2c0', waits)
  local fence = now > last_fence and now or last_fence + 1
  local is_silent = now - (till - lease) > SILENT and count <= FEW
  -- Where the first in line gave up, this is the field of the holder itself.
  local is_other = next ~= id
  if is_other and sent > 0 and weight == 0 and marks == 0 and seq == head + 1 and fence < FENCES and not is_silent then
    -- A write that needs no memory goes first: what comes after it is not refused, and after the notification nothing
    -- may be.
    redis.call('HDEL', key, 'w' .. sole, next)
    if lease > TURN then lease = TURN end
    -- As in hand.lua.
    local notification = next .. struct.pack('>I8I8I8', fence, sent, lease)
    if leaves then
      left = 1
      redis.call('HSET', key, 'memo', string.sub(ARGV[1], 19))
    end
    if left == 1 then notification = notification .. '=' .. (redis.call('HGET', key, 'memo') or '') end
    if redis.call(PUBLISH, mailbox, notification) > 0 then
      if till > now + TURN then till = now + TURN end
      last_fence, head, sole, only, count = fence, seq, seq, next, count - 1
      if till < soon then soon = till end
      field, answer = next_field, 3
      entry = struct.pack(ENTRY, till, lease, fence, 0, now, sent, since, seq, 0, 0, behind)
        .. string.sub(waits, ENTRY_SIZE + 1)
    else
      -- The waiter is gone. The long way detects that, and finds another.
      redis.call('HSET', key, next, seq)
      holders, sole, only, is_removed = 0, 0, nil, true
    end
  end
end

