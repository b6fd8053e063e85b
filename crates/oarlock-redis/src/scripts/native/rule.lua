-- The rule, as oarlock-core's model.rs has it, on the server's clock. Whoever was handed its turn holds.

local GRAVES, MANY = 8, 2000

local entries = state.entries
local dirty, changed = false, false
local calls, gone, fields = {}, {}, {}
-- Those stored as waiters, and those of them that must be stored anew.
local waited, touched = {}, {}

if state.count then
  for from = state.head + 1, state.tail, MANY do
    local names = {}
    for seq = from, math.min(from + MANY - 1, state.tail) do names[#names + 1] = 'w' .. seq end
    for _, packed in ipairs(redis.call('HMGET', key, unpack(names))) do
      if packed then
        local read, e = pcall(cmsgpack.unpack, packed)
        if not read or type(e) ~= 'table' then return { 'foreign', 'a waiter that cannot be read' } end
        entries[#entries + 1] = e
        waited[e] = true
      end
    end
  end
  table.sort(entries, function(a, b) return a.seq < b.seq end)
end

-- Nothing lasts longer than the lease it was given, counted from now: unless the clock was set back.
for _, e in ipairs(entries) do
  if e.till > now + e.lease or (e.turn and e.turn > now + TURN) then
    e.till = math.min(e.till, now + e.lease)
    e.turn = e.turn and math.min(e.turn, now + TURN)
    touched[e], dirty = true, true
  end
end

local function ends_at(e)
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
    if not e.fence or e.handed then return 1 end
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

local function next_fence() return math.max(last_fence + 1, now) end

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
          touched[e] = true
          calls[#calls + 1] = e
          if fair and e.sent and not e.by and next_fence() < FENCES then
            last_fence = next_fence()
            hand(e, last_fence)
          else
            e.turn = now + TURN
          end
        end
      else
        if e.turn then touched[e] = true end
        e.turn = nil
        blocked = blocked or fair
      end
    end
  end
end

-- The holder knows that it holds.
local function take(e)
  e.since, e.handed, e.sent = e.handed or e.since, nil, nil
end

local function graves()
  local read, list = unpacked(stored[4], {})
  return read and type(list) == 'table' and list or {}
end

local function bury(e)
  local list = graves()
  if #list >= GRAVES then table.remove(list, 1) end
  table.insert(list, { id = e.id, by = e.by, why = e.why })
  stored[4] = cmsgpack.pack(list)
  fields[#fields + 1] = 'graves'
  fields[#fields + 1] = stored[4]
end

local function after_removal()
  if #entries == 0 then state.cap = nil end
  dirty, changed = true, true
  call()
end

local function leave(e)
  gone[#gone + 1] = e.id
  if waited[e] then gone[#gone + 1] = 'w' .. e.seq end
end

local function remove(at)
  leave(table.remove(entries, at))
  after_removal()
end

-- Removes what has run out.
local function expire()
  local kept = {}
  for _, e in ipairs(entries) do
    if ends_at(e) > now then
      kept[#kept + 1] = e
    else
      leave(e)
      if e.by then bury(e) end
    end
  end
  if #kept < #entries then
    entries = kept
    after_removal()
  end
end

-- Numbers the waiters anew where too many of the numbers between them are free.
local function close_ranks(waiters)
  local first, last = waiters[1], waiters[#waiters]
  if not first or last.seq - first.seq < 4 * #waiters + 100 then return end
  for at, e in ipairs(entries) do
    if waited[e] then gone[#gone + 1] = 'w' .. e.seq end
    e.seq = at
    touched[e] = true
  end
  state.tail = #entries
end

-- Splits what is there into those who hold and those who wait, and stores of the latter what changed.
local function store()
  local waiters, last = {}, now
  state.entries = {}
  for _, e in ipairs(entries) do
    if e.till > last then last = e.till end
    local among = e.fence and state.entries or waiters
    among[#among + 1] = e
    if e.fence and waited[e] then gone[#gone + 1] = 'w' .. e.seq end
  end
  close_ranks(waiters)
  state.head, state.count, state.soon = nil, nil, nil
  for _, e in ipairs(waiters) do
    state.soon = math.min(state.soon or e.till, ends_at(e))
    if touched[e] then
      fields[#fields + 1] = 'w' .. e.seq
      fields[#fields + 1] = cmsgpack.pack(e)
    end
  end
  if waiters[1] then state.head, state.count = waiters[1].seq - 1, #waiters end
  state.last = math.ceil(last / 1000)
  if #entries == 0 then
    gone[#gone + 1] = 'state'
  else
    fields[#fields + 1] = 'state'
    fields[#fields + 1] = cmsgpack.pack(state)
  end
end

-- Lua hands over no more than so many at once.
local function in_parts(command, list)
  for from = 1, #list, MANY do
    redis.call(command, key, unpack(list, from, math.min(from + MANY - 1, #list)))
  end
end

-- Stores what changed, tells whom it concerns, and gives the answer.
local function finish(answer)
  if not dirty then return answer end
  store()
  local ends_ms = ends(state.last)
  if ends_ms then
    fields[#fields + 1] = 'ends'
    fields[#fields + 1] = ends_ms
  end
  -- Whoever ran out may be back already: what is removed goes first.
  in_parts('HDEL', gone)
  redis.call('HSET', key, 'format', FORMAT, 'fence', last_fence)
  in_parts('HSET', fields)
  if ends_ms then redis.call('PEXPIREAT', key, ends_ms) end
  if #entries > 0 then
    enlist(state.last, ends_ms)
  else
    redis.call('ZREM', index, key)
  end
  for _, e in ipairs(calls) do tell(e) end
  if changed then redis.call(PUBLISH, key, '') end
  return answer
end

