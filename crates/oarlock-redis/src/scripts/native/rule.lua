-- The rule, as oarlock-core's model.rs has it, on the server's clock.

local TURN, GRAVES = 2000000, 8

local entries = state.entries
local dirty, changed = false, false
local calls, gone, fields = {}, {}, {}

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

local function remove(at)
  gone[#gone + 1] = table.remove(entries, at).id
  after_removal()
end

-- Removes what has run out.
local function expire()
  local kept = {}
  for _, e in ipairs(entries) do
    if ends_at(e) > now then
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
  local last_ms = math.ceil(last / 1000)
  if #entries == 0 then
    gone[#gone + 1] = 'state'
  else
    fields[#fields + 1] = 'state'
    state.entries = entries
    fields[#fields + 1] = cmsgpack.pack(state)
  end
  local ends_ms = ends(last_ms)
  if ends_ms then
    fields[#fields + 1] = 'ends'
    fields[#fields + 1] = ends_ms
  end
  -- Whoever ran out may be back already: what is removed goes first.
  if #gone > 0 then redis.call('HDEL', key, unpack(gone)) end
  redis.call('HSET', key, 'format', FORMAT, 'fence', last_fence, unpack(fields))
  if ends_ms then redis.call('PEXPIREAT', key, ends_ms) end
  if #entries > 0 then
    enlist(last_ms, ends_ms)
  else
    redis.call('ZREM', index, key)
  end
  for _, e in ipairs(calls) do redis.call(PUBLISH, mail .. e.session, e.id) end
  if changed then redis.call(PUBLISH, key, '') end
  return answer
end

