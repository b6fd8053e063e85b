
-- Ends a claim, and then takes or queues another one.
--
-- KEYS     see load.lua
-- ARGV[1]  the request of a release, see release.alone.lua
-- ARGV[2]  the request of an attempt, see attempt.free.lua
-- answer   that of the release, that of the attempt; nil instead of the latter if it failed: it has to be sent again
--
-- The short way, for the only holder of a resource and another claim that wants everything, where there is no memo. It
-- does what the short ways of both do, and reads and stores the state once.

-- As in release.next.lua.
local SILENT, FEW = 200000, 32
local REQUEST, REQUEST_SIZE = '>BBI4I4I4I8I8i8c16', 38

local how, id = struct.unpack('>Bc16', ARGV[1])
local wait, said, weight, _, behind, ttl, waiter_ttl, sent, mine = struct.unpack(REQUEST, ARGV[2])
local fence = now > last_fence and now or last_fence + 1
local is_short = how == 0 and #ARGV[1] == 17 and left == 0 and wait == 1 and said == 0 and weight == 0
  and only == id and mine ~= id and soon > now and fence < FENCES and count < 1000000
-- The answers, what is stored besides the state, and how.
local released, answer, fields
local write = redis.call

if is_short and count == 0 then
  -- It takes the position of the one that ends. A full server refuses that: then the release has to pass alone.
  if sole == 1 then write = redis.pcall else redis.call('HDEL', key, 'w' .. sole) end
  local till = now + ttl
  last_fence, soon, last, cap, head, tail, sole, only = fence, till, till, -1, 1, 1, 1, mine
  if streak < OFTEN then streak = streak + 1 end
  released, answer = 2, fence
  fields = {
    'w1',
    struct.pack(ENTRY, till, ttl, fence, 0, 0, 0, now, 1, 0, 0, behind) .. string.sub(ARGV[2], REQUEST_SIZE + 1),
  }
elseif is_short and not redis.call('HGET', key, mine) then
  -- The next one is handed the resource, as in release.next.lua, and this one goes to the end, as in
  -- attempt.behind.lua.
  local next_field = 'w' .. head + 1
  local waits = redis.call('HGET', key, next_field)
  if waits and #waits >= ENTRY_SIZE + 18 then
    local till, lease, _, _, _, heard, since, seq, heavy, marks, its_behind, next, mailbox =
      struct.unpack('>I8I8I8I8I8i8I8I8I4BI4c16I2c0', waits)
    local is_silent = now - (till - lease) > SILENT and count <= FEW
    if next ~= id and heard > 0 and heavy == 0 and marks == 0 and seq == head + 1 and not is_silent then
      -- A write that needs no memory goes first: what comes after it is not refused, and after the notification
      -- nothing may be.
      redis.call('HDEL', key, next)
      if lease > TURN then lease = TURN end
      if redis.call(PUBLISH, mailbox, next .. struct.pack('>I8I8I8', fence, heard, lease)) > 0 then
        redis.call('HDEL', key, 'w' .. sole)
        if till > now + TURN then till = now + TURN end
        if till < soon then soon = till end
        released, answer = 3, -1 - count * 4294967296 - math.ceil((soon - now) / 1000)
        head = count == 1 and tail or seq
        last_fence, sole, only, tail = fence, seq, next, tail + 1
        local my_till = now + waiter_ttl
        if my_till < soon then soon = my_till end
        if my_till > last then last = my_till end
        fields = {
          next_field,
          struct.pack(ENTRY, till, lease, fence, 0, now, heard, since, seq, 0, 0, its_behind)
            .. string.sub(waits, ENTRY_SIZE + 1),
          'w' .. tail,
          struct.pack(ENTRY, my_till, waiter_ttl, 0, 0, 0, sent, now, tail, 0, 0, behind)
            .. string.sub(ARGV[2], REQUEST_SIZE + 1),
          mine, tail,
        }
      else
        -- The waiter is gone. The long way detects that, and finds another.
        redis.call('HSET', key, next, seq)
      end
    end
  end
end

if fields then
  -- As in store.lua.
  local enlists, anew = last > listed, ends * 1000 < last + DAY
  if enlists then listed = last + LONGER end
  if quiet == 0 and redis.call(PUBLISH, key, '') == 0 then quiet = 1 end
  if anew then ends = math.ceil(last / 1000) + 90000000 end
  local state = struct.pack(
    HEAD, VERSION, quiet, left, streak, holders, cap + 1, last_fence, ends, last, soon, listed, count, head, tail, sole,
    only
  )
  if type(write('HSET', key, 'state', state, unpack(fields))) ~= 'table' then
    if enlists and redis.call('ZADD', index, math.ceil(listed / 1000), key) == 1 then
      redis.call('PEXPIRE', index, INDEX_MS)
    end
    if anew then
      redis.call('HSET', key, 'format', FORMAT)
      redis.call('PEXPIREAT', key, ends)
      redis.call('PEXPIRE', index, INDEX_MS)
    end
    return { released, answer }
  end
end

