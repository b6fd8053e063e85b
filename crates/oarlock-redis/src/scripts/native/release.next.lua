-- The next short way, for the only holder of a resource whose next in line wants everything, and can be handed it.

local function to_the_next()
  local seq, fence = state.head + 1, math.max(last_fence + 1, now)
  local packed = redis.call('HGET', key, 'w' .. seq)
  local next = packed and cmsgpack.unpack(packed)
  if not next or not next.fair or not next.sent or next.by or next.weight > 0 or fence >= FENCES then return end
  hand(next, fence)
  state.entries, state.head, state.count = { next }, seq, state.count - 1
  if state.count == 0 then state.head, state.count, state.soon = nil, nil, nil end
  if how == 'done' and ARGV[4] ~= '' then
    memo = string.sub(ARGV[4], 2)
    redis.call('HSET', key, 'memo', memo)
  end
  redis.call('HDEL', key, id, 'w' .. seq)
  redis.call('HSET', key, 'fence', fence, 'state', cmsgpack.pack(state))
  tell(next)
  redis.call(PUBLISH, key, '')
  return { 'released', 1 }
end

if how ~= 'broken' and state.count and only and not state.entries[2] and only.id == id and not only.by
  and only.till > now and state.soon > now
then
  local answer = to_the_next()
  if answer then return answer end
end

