-- The rule, as oarlock-core's model.rs has it, on the server's clock. A claim that was handed its turn holds.

local MOST_ENDINGS, MANY, NEAR = 8, 2000, 200
-- A waiter that was silent for so long may be dead; with no more waiters than this, no other would notice soon.
local SILENT, FEW = 200000, 32

local entries = {}
local dirty, changed = false, false
local to_notify, gone, fields = {}, {}, {}
-- What was stored of those that were, and the waiters that must be stored anew.
local stored_as, touched = {}, {}
local only_before = only

local function there(number) return number ~= 0 and number or nil end

local function entry_of(packed)
  local till, lease, fence, turn, handed, sent, since, seq, weight, marks, behind = struct.unpack(ENTRY, packed)
  local id, mailbox, kind, value, label, after = struct.unpack(BODY, packed, ENTRY_SIZE + 1)
  if math.max(till, lease, fence, turn, handed, math.abs(sent), since) > FENCES then error('not ours') end
  if seq < 1 or seq > tail then error('not ours') end
  local by, why
  if marks >= 2 then
    by, why, after = struct.unpack(ENDING, packed, after)
  end
  if after ~= #packed + 1 then error('left over') end
  return {
    till = till, lease = lease, fence = there(fence), turn = there(turn), handed = there(handed), sent = there(sent),
    since = since, seq = seq, weight = weight, unheard = marks % 2 == 1, behind = behind, id = id, mailbox = mailbox,
    kind = kind, value = value, label = label, by = by, why = why,
  }
end

local function packed_entry(e)
  return struct.pack(
    ENTRY, e.till, e.lease, e.fence or 0, e.turn or 0, e.handed or 0, e.sent or 0, e.since, e.seq, e.weight,
    (e.unheard and 1 or 0) + (e.by and 2 or 0), e.behind
  ) .. struct.pack(BODY, e.id, #e.mailbox, e.mailbox, #e.kind, e.kind, #e.value, e.value, #e.label, e.label)
    .. (e.by and struct.pack(ENDING, #e.by, e.by, #e.why, e.why) or '')
end

-- The fields of all claims. Where numbers between them are free, those that are there are looked up: what this costs
-- depends on how many there are, not on how many there were, nor on the numbers that another program wrote.
local function claim_fields()
  local names = {}
  if holders + count == 0 then return names end
  if tail - head <= NEAR then
    if sole > 0 and sole <= head then names[1] = 'w' .. sole end
    for seq = head + 1, tail do names[#names + 1] = 'w' .. seq end
    return names
  end
  for _, field in ipairs(redis.call('HKEYS', key)) do
    -- An id is longer.
    if #field < 16 and string.find(field, '^w%d+$') then names[#names + 1] = field end
  end
  return names
end

local function read_all()
  local names, hold = claim_fields(), 0
  for from = 1, #names, MANY do
    for _, packed in ipairs(redis.call('HMGET', key, unpack(names, from, math.min(from + MANY - 1, #names)))) do
      if packed then
        local e = entry_of(packed)
        entries[#entries + 1] = e
        stored_as[e] = packed
        if e.fence then hold = hold + 1 end
        if only and e.fence and e.id ~= only then error('another holds') end
      end
    end
  end
  if #entries ~= holders + count or hold ~= holders then error('not as many as it says') end
  table.sort(entries, function(a, b) return a.seq < b.seq end)
end

if not pcall(read_all) then return { 'foreign', 'a state that cannot be read' } end

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

local function is_silent(e) return now - (e.till - e.lease) > SILENT end

-- Lets a waiter hold that has not asked for it yet.
local function hand(e, fence)
  e.fence, e.handed, e.turn, e.lease = fence, now, nil, math.min(e.lease, TURN)
  e.till = math.min(e.till, now + TURN)
end

-- Whether a notification would reach a waiter that listened at its last request.
local function is_heard(e)
  if not e.sent then return true end
  local told = redis.pcall('PUBSUB', NUMSUB, e.mailbox)
  return type(told[2]) ~= 'number' or told[2] > 0
end

-- Tells the waiters that fit now that their turn has come, and starts the time they have to take it. If one of them may
-- be dead, the next one that can is told to look, and so learns when that time is over.
local function notify_next()
  local limit, load, blocked, doubtful = cap < 0 and 1 or cap, no_load(), false, false
  for _, e in ipairs(entries) do
    if e.fence then add(load, e.weight) end
  end
  for _, e in ipairs(entries) do
    if not e.fence then
      if not e.turn and not e.unheard and not blocked and bears(load, e.weight, limit) and not is_heard(e) then
        e.unheard, touched[e] = true, true
      end
      if e.unheard then
        e.turn = nil
      elseif not blocked and bears(load, e.weight, limit) then
        add(load, e.weight)
        if not e.turn then
          touched[e] = true
          to_notify[#to_notify + 1] = e
          doubtful = doubtful or is_silent(e)
          if e.sent and e.sent > 0 and not e.by and next_fence() < FENCES then
            last_fence = next_fence()
            hand(e, last_fence)
          else
            e.turn = now + TURN
          end
        end
      else
        if e.turn then touched[e] = true end
        e.turn = nil
        blocked = true
        if doubtful and e.sent and #entries <= FEW then
          to_notify[#to_notify + 1] = e
          doubtful = false
        end
      end
    end
  end
end

-- The holder knows that it holds.
local function take(e)
  e.since, e.handed, e.sent = e.handed or e.since, nil, nil
end

-- What there is after the '=' of something that is there.
local function text_of(text) return text ~= '' and string.sub(text, 2) end

local function ending(e)
  if not e.by then return false, false end
  return e.by, e.why
end

local changed_endings

local function endings()
  if changed_endings then return changed_endings end
  local packed = redis.call('HGET', key, 'graves')
  if not packed then return {} end
  local read, list = pcall(cmsgpack.unpack, packed)
  local told = {}
  for _, ended in ipairs(read and type(list) == 'table' and list or {}) do
    if type(ended) == 'table' and #told < MOST_ENDINGS then told[#told + 1] = ended end
  end
  return told
end

local function keep_ending(e)
  changed_endings = endings()
  if #changed_endings >= MOST_ENDINGS then table.remove(changed_endings, 1) end
  table.insert(changed_endings, { id = e.id, by = e.by, why = e.why })
end

local function after_removal()
  if #entries == 0 then cap = -1 end
  dirty, changed = true, true
  notify_next()
end

local function leave(e)
  gone[#gone + 1] = e.id
  gone[#gone + 1] = 'w' .. e.seq
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
      if e.by then keep_ending(e) end
    end
  end
  if #kept < #entries then
    entries = kept
    after_removal()
  end
end

-- Counts those who hold and those who wait, and stores what changed of each.
local function store()
  local latest, waits, hold, alone = now, 0, 0, nil
  soon = #entries > 0 and math.huge or now
  for _, e in ipairs(entries) do
    latest, soon = math.max(latest, e.till), math.min(soon, ends_at(e))
    if e.fence then hold, alone = hold + 1, e else waits = waits + 1 end
  end
  if hold ~= 1 or alone.by then alone = nil end
  local first
  for _, e in ipairs(entries) do
    if touched[e] or e.fence then
      local packed = packed_entry(e)
      if packed ~= stored_as[e] then
        fields[#fields + 1] = 'w' .. e.seq
        fields[#fields + 1] = packed
      end
    end
    local has_number = stored_as[e] and e.id ~= only_before
    if e == alone then
      if has_number then gone[#gone + 1] = e.id end
    else
      first = first or e.seq
      if not has_number then
        fields[#fields + 1] = e.id
        fields[#fields + 1] = e.seq
      end
    end
  end
  count, holders = waits, hold
  sole, only = alone and alone.seq or 0, alone and alone.id
  tail = #entries > 0 and entries[#entries].seq or 0
  head = first and first - 1 or tail
  if #entries > 0 then last = latest end
  if changed_endings then
    fields[#fields + 1] = 'graves'
    fields[#fields + 1] = cmsgpack.pack(changed_endings)
  end
end

-- Lua hands over no more than so many at once.
local function in_parts(command, list)
  for from = 1, #list, MANY do
    redis.call(command, key, unpack(list, from, math.min(from + MANY - 1, #list)))
  end
end

-- Stores what changed, notifies the claims that it concerns, and returns the reply.
local function finish(answer)
  if not dirty then return answer end
  store()
  -- A claim that expired may be back already: removals go first.
  in_parts('HDEL', gone)
  if #entries > 0 then
    enlist()
  elseif listed > 0 then
    redis.call('ZREM', index, key)
    listed = 0
  end
  if changed then changes() end
  keep()
  in_parts('HSET', fields)
  for _, e in ipairs(to_notify) do tell(e.id, e.mailbox, e.handed and e.fence, e.sent, e.lease) end
  return answer
end

