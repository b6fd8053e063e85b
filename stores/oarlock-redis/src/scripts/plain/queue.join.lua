-- Puts the claim into the queue: where it was, if it had its turn and another program was faster.

local function enqueue()
  local since = turn == waits and turn_since or micros()
  local added = redis.pcall('ZADD', queue, 'NX', since, waits)
  if type(added) ~= 'number' then return false end
  if added == 1 then call('PEXPIRE', queue, QUEUE_MS) end
  if turn and (turn == waits or turn_left <= 0) then call('HSET', side, 'turn', '') end
  return true
end

