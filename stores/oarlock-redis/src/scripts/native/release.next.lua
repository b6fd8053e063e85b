-- The next short way, for the only holder of a resource whose next in line wants everything, and can be handed it.

local function to_the_next()
  local field, fence = 'w' .. head + 1, math.max(last_fence + 1, now)
  local waits = redis.call('HGET', key, field)
  if not waits or fence >= FENCES then return end
  local till, lease, _, turn, _, sent, weight, deaf, behind, seq, since, next, session, kind, value, by =
    struct.unpack(ENTRY, waits)
  if sent <= 0 or weight > 0 or deaf == 1 or by ~= '' then return end
  if now - (till - lease) > SILENT and count <= FEW then return end

  -- A write that needs no memory goes first: what comes after it is not refused, and after the word nothing may be.
  redis.call('HDEL', key, id, field)
  if left ~= '' then
    memo = string.sub(left, 2)
    redis.call('HSET', key, 'memo', memo)
  end
  lease = math.min(lease, TURN)
  if tell(next, session, fence, sent, lease) == 0 then
    -- The waiter is gone. The long way detects that, and finds another.
    redis.call('HSET', key, field, waits)
    return
  end
  till = math.min(till, now + TURN)
  last_fence, only, head, count, soon = fence, next, head + 1, count - 1, math.min(soon, till)
  keep(struct.pack('>dddddd', till, lease, fence, 0, now, sent) .. string.sub(waits, 49))
  redis.call(PUBLISH, key, '')
  return { 'released', 1 }
end

if only == id and count > 0 and how ~= 'broken' and soon > now then
  local answer = to_the_next()
  if answer then return answer end
end

