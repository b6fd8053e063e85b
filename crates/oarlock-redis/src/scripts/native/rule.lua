-- The rule, as oarlock-core's model.rs has it, on the server's clock. It goes before each of the other scripts.
--
-- KEYS[1]  the resource, a hash:
--            format  the version of this layout
--            state   MessagePack of { cap, fence, entries, graves }: holders and waiters in order of arrival
--            memo    the bytes that a holder left
--            <id>    the label of that claim, in JSON
-- KEYS[2]  the index, a sorted set: the keys in use, by the millisecond at which the last claim of each ends
-- ARGV[1]  what goes before a session to name the channel of its mailbox
-- answer   'foreign', why | 'newer', format: the key is not ours, and is left as it is
--
-- Times are in microseconds. 0 stands for everything as a weight, and for no limit as a capacity.

local key, index, mail = KEYS[1], KEYS[2], ARGV[1]
local FORMAT, TURN, KEEP_MS, GRAVES, FENCES = '1', 2000000, 86400000, 8, 9007199254740992

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local stored = redis.pcall('HMGET', key, 'format', 'state', 'memo')
if stored.err then
  if string.find(stored.err, 'WRONGTYPE', 1, true) then return { 'foreign', 'a value of another type' } end
  return stored
end
local format, memo = stored[1], stored[3]
local state = { fence = 0, entries = {}, graves = {} }
if format == FORMAT then
  local whole, read = pcall(cmsgpack.unpack, stored[2])
  if not whole or type(read) ~= 'table' or type(read.entries) ~= 'table' then
    return { 'foreign', 'a state that cannot be read' }
  end
  state = read
elseif format then
  if string.find(format, '^%d+$') then return { 'newer', format } end
  return { 'foreign', 'a format that is no number' }
elseif redis.call('EXISTS', key) == 1 then
  return { 'foreign', 'a hash of another program' }
end

local entries = state.entries
local dirty, changed = false, false
local calls, gone, fields = {}, {}, {}

local function ends(e)
  if e.turn and e.turn < e.till then return e.turn end
  return e.till
end

local function find(id)
  for at, e in ipairs(entries) do
    if e.id == id then return at, e end
  end
end

local function is_fair()
  for _, e in ipairs(entries) do
    if e.fair then return true end
  end
  return false
end

local function anyone_waits()
  for _, e in ipairs(entries) do
    if not e.fence then return 1 end
  end
  return 0
end

local function no_load() return { claims = 0, units = 0, all = false } end

local function add(load, weight)
  load.claims = load.claims + 1
  if weight == 0 then load.all = true else load.units = load.units + weight end
end

local function bears(load, weight, limit)
  if weight == 0 then return load.claims == 0 end
  return not load.all and (limit == 0 or load.units + weight <= limit)
end

-- Tells the waiters that fit now that their turn has come, and starts the time they have to take it.
local function call()
  local fair, limit, load, blocked = is_fair(), state.cap or 1, no_load(), false
  for _, e in ipairs(entries) do
    if e.fence then add(load, e.weight) end
  end
  for _, e in ipairs(entries) do
    if not e.fence then
      if not blocked and bears(load, e.weight, limit) then
        add(load, e.weight)
        if not e.turn then
          e.turn = now + TURN
          calls[#calls + 1] = e
        end
      else
        e.turn = nil
        blocked = blocked or fair
      end
    end
  end
end

local function bury(e)
  if #state.graves == GRAVES then table.remove(state.graves, 1) end
  table.insert(state.graves, { id = e.id, by = e.by, why = e.why })
end

local function after_removal()
  if #entries == 0 then state.cap = nil end
  dirty, changed = true, true
  call()
end

local function remove(at)
  gone[#gone + 1] = table.remove(entries, at).id
  after_removal()
end

-- Removes what has run out.
local function expire()
  local kept = {}
  for _, e in ipairs(entries) do
    if ends(e) > now then
      kept[#kept + 1] = e
    else
      gone[#gone + 1] = e.id
      if e.by then bury(e) end
    end
  end
  if #kept < #entries then
    entries = kept
    after_removal()
  end
end

-- Stores what changed, tells whom it concerns, and gives the answer.
local function finish(answer)
  if not dirty then return answer end
  local last = now
  for _, e in ipairs(entries) do
    if e.till > last then last = e.till end
  end
  state.entries = entries
  redis.call('HSET', key, 'format', FORMAT, 'state', cmsgpack.pack(state), unpack(fields))
  for _, id in ipairs(gone) do redis.call('HDEL', key, id) end
  local now_ms, last_ms = math.floor(now / 1000), math.ceil(last / 1000)
  redis.call('PEXPIREAT', key, last_ms + KEEP_MS)
  if #entries > 0 then
    redis.call('ZADD', index, last_ms, key)
    if redis.call('PTTL', index) < last_ms - now_ms then redis.call('PEXPIREAT', index, last_ms + KEEP_MS) end
    redis.call('ZREMRANGEBYSCORE', index, '-inf', now_ms)
  else
    redis.call('ZREM', index, key)
  end
  for _, e in ipairs(calls) do redis.call('PUBLISH', mail .. e.session, e.id) end
  if changed then redis.call('PUBLISH', key, '') end
  return answer
end

