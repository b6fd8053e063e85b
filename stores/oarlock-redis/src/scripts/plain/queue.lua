-- The queue of our claims for a lock. Other programs do not know it, and take the lock whenever it is free.
--
-- KEYS[3]  the claims that wait, a sorted set by the microsecond of their arrival. Each is the 16 bytes of its id, and
--          the channel on which its client hears of its turn
--
-- A claim leaves the queue when the lock is released and it is told so. Then it is its turn for a while ('turn' in
-- load.lua), and others of ours that wait do not take the lock. A claim that does not react loses only its position.

-- How long a turn may go untaken, in microseconds.
local TURN = 250000
-- The queue ends by itself: claims that wait come back to it.
local QUEUE_MS = 3600000
local TURN_HEAD = '>I8I8'

local function micros()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Whose turn it is, until when, and since when it waits.
local function turn_of(packed)
  if not packed or #packed < 32 then return nil, 0, 0 end
  local till, since = struct.unpack(TURN_HEAD, packed)
  return string.sub(packed, 17), till, since
end

