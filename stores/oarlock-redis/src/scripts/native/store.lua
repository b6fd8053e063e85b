-- Stores what a short way has decided, without the functions of the long way: to make them costs more than to call
-- them. It has an answer then, and at most two fields to store.

if answer then
  -- As in keep.lua.
  if last > listed and holders + count > 0 then
    listed = last + LONGER
    if redis.call('ZADD', index, math.ceil(listed / 1000), key) == 1 then redis.call('PEXPIRE', index, INDEX_MS) end
  end
  if quiet == 0 and redis.call(PUBLISH, key, '') == 0 then quiet = 1 end
  local anew = ends * 1000 < last + DAY
  if anew then ends = math.ceil(last / 1000) + 90000000 end
  local state = struct.pack(
    HEAD, VERSION, quiet, left, streak, holders, cap + 1, last_fence, ends, last, soon, listed, count, head, tail, sole,
    only or NO_CLAIM
  )
  local kept
  if number then
    kept = write('HSET', key, 'state', state, field, entry, id, number)
  elseif field then
    kept = write('HSET', key, 'state', state, field, entry)
  else
    kept = write('HSET', key, 'state', state)
  end
  if type(kept) == 'table' then
    -- A full server lets those pass that come after a write that needs no memory.
    redis.call('HDEL', key, field or '')
    redis.call('HSET', key, 'state', state)
  end
  if anew then
    redis.call('HSET', key, 'format', FORMAT)
    redis.call('PEXPIREAT', key, ends)
    if listed > 0 then redis.call('PEXPIRE', index, INDEX_MS) end
  end
  return answer
end

