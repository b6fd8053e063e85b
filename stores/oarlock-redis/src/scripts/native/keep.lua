-- How the long way stores the numbers.

-- In a key that ends by itself a day after its last claim. An hour more, so that it is seldom told.
local function keep(...)
  local anew = ends * 1000 < last + DAY
  if anew then ends = math.ceil(last / 1000) + 90000000 end
  local state = struct.pack(
    HEAD, VERSION, quiet, left, streak, holders, cap + 1, last_fence, ends, last, soon, listed, count, head, tail, sole,
    only or NO_CLAIM
  )
  redis.call('HSET', key, 'state', state, ...)
  if anew then
    redis.call('HSET', key, 'format', FORMAT)
    redis.call('PEXPIREAT', key, ends)
    if listed > 0 then redis.call('PEXPIRE', index, INDEX_MS) end
  end
end

-- Notes in the index that the key is in use, before the state is stored.
local function enlist()
  if last <= listed then return end
  listed = last + LONGER
  if redis.call('ZADD', index, math.ceil(listed / 1000), key) == 1 then redis.call('PEXPIRE', index, INDEX_MS) end
end

-- Tells those who observe the resource that it changed, before the state is stored.
local function changes()
  if quiet == 0 and redis.call(PUBLISH, key, '') == 0 then quiet = 1 end
end

