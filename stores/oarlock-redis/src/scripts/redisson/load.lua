-- Reads an object that Redisson programs use too, as they store it. It goes before each of the other scripts of this
-- layout, after lines that say how to publish and whether locks have tokens.
--
-- KEYS[1]  the object, whose type says what it is:
--            a hash without 'mode'  a lock: one field, its holder, to how often it holds; ends with the lease
--            a hash with 'mode'     a read-write lock: 'mode' is 'read' or 'write', the other fields are readers, and
--                                   writers with ':write' behind them. A reader has a key for each hold, which ends
--                                   with the lease of that hold; the hash ends with the last of them
--            a string               a semaphore: how many permits can be had
-- KEYS[2]  what only we keep of it, a hash in the same slot:
--            format  the version of what we keep
--            fence   the largest fence given or reserved so far
--            ours    MessagePack: for each claim of ours its fence, session, kind, since, till, weight, label, value,
--                    and by and why if it was asked to end; absent while there are none
--            graves  MessagePack of { id, by, why } of claims of ours that others ended; absent while there are none
--            memo    the bytes that a holder left
--            cap     the capacity of a semaphore that we set up
-- KEYS[3]  the token of a fenced lock, a string
-- KEYS[4]  the permits of a semaphore that have a lease, a sorted set: 16 bytes by the millisecond at which each ends
-- KEYS[5]  who waits for a fair lock, a list of theirs; we have no position in it
-- KEYS[6]  until when each of them waits, a sorted set: by the millisecond
-- ARGV[1]  what goes before a session to name the channel of its mailbox
-- answer   'foreign', why | 'newer', format: left as it is
--
-- A holder of ours is identified by its claim in the form of a UUID, as thread 0, which no program of theirs has. Times
-- are in microseconds; the objects themselves are kept to the millisecond. 0 stands for everything as a weight.

local key, side, token_key, permits_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local queue, waits, mail = KEYS[5], KEYS[6], ARGV[1]
local FORMAT, FENCES, KEEP_MS, MOST_ENDINGS, NEVER = '1', 9007199254740992, 86400000, 8, 922337203685477
-- More holds of one lock than any program has, and the most permits of one claim.
local MOST, MOST_PERMITS = 10000, 1000
-- How long their holds last after a renewal, unless a program of theirs was told otherwise.
local THEIRS_MS = 30000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_ms = math.floor(now / 1000)

-- How they derive names: what has a brace anywhere is taken to have its hash tag already.
local braced = string.find(key, '{', 1, true) and key or '{' .. key .. '}'
local LOCK, RW, PERMITS = 'redisson_lock__channel:' .. braced, 'redisson_rwlock:' .. braced, 'redisson_sc:' .. braced

local stored = redis.pcall('HMGET', side, 'format', 'fence', 'ours', 'graves', 'memo', 'cap')
if stored.err then
  if string.find(stored.err, 'WRONGTYPE', 1, true) then return { 'foreign', 'a side key of another type' } end
  return stored
end
if stored[1] and stored[1] ~= FORMAT then return { 'newer', stored[1] } end
-- What is written in digits: not 'nan', which is smaller and larger than nothing, nor 'inf'.
local function whole(text) return string.find(text, '^%-?%d+$') and tonumber(text) or nil end

local last_fence, memo, cap = whole(stored[2] or '0'), stored[5], stored[6] and whole(stored[6])
if not last_fence or (stored[6] and not cap) then
  return { 'foreign', 'a side key with a fence or capacity that is no number' }
end
cap = cap or nil
local function unpacked(packed)
  if not packed then return {} end
  local read, value = pcall(cmsgpack.unpack, packed)
  return read and type(value) == 'table' and value or {}
end
local ours, endings = unpacked(stored[3]), unpacked(stored[4])
-- Something is done as often as a weight says, and a fence is given to its holder again.
for _, claim in pairs(ours) do
  if type(claim) ~= 'table' then claim = {} end
  local fence, till, weight = claim.fence, claim.till, claim.weight or 0
  local sum = type(fence) == 'number' and type(till) == 'number' and type(weight) == 'number' and fence + till + weight
  local is_whole = sum and sum < 3 * FENCES and math.min(fence, till, weight) >= 0 and fence % 1 == 0
  if not (is_whole and weight <= MOST_PERMITS) then
    return { 'foreign', 'a side key with numbers that no version of Oarlock writes' }
  end
end
local dirty = false

-- Notifies the subscribers. In a cluster they listen to sharded channels; their versions before 3.22 to the others, on
-- this node.
local function tell(channel, message)
  redis.call(PUBLISH, channel, message)
  if PUBLISH == 'SPUBLISH' then
    local heard = redis.pcall('PUBSUB', 'NUMSUB', channel)
    if not heard.err and heard[2] > 0 then redis.call('PUBLISH', channel, message) end
  end
  -- A '1' wakes those of their threads that sleep. One that is about to sleep would miss it; a '0' is kept for it.
  if message == '1' then tell(channel, '0') end
end

local function owner_of(id)
  local s = string.sub
  return s(id, 1, 8) .. '-' .. s(id, 9, 12) .. '-' .. s(id, 13, 16) .. '-' .. s(id, 17, 20) .. '-' .. s(id, 21) .. ':0'
end

-- The id that a holder is shown with. Ours have their own, those of others one that is made of their name.
local function id_of(owner)
  local a, b, c, d, e = string.match(owner, '^(%x+)%-(%x+)%-(%x+)%-(%x+)%-(%x+):0$')
  local id = a and a .. b .. c .. d .. e
  if id and owner == owner_of(id) and #id == 32 then return id end
  return string.sub(redis.sha1hex(owner), 1, 32)
end

-- 32 digits for 16 bytes, and back: a few calls for each, because there may be a thousand permits.
local function unhex(digits)
  local function part(from) return tonumber(string.sub(digits, from, from + 7), 16) end
  return struct.pack('>I4I4I4I4', part(1), part(9), part(17), part(25))
end

local function hex(bytes) return string.format('%08x%08x%08x%08x', struct.unpack('>I4I4I4I4', bytes)) end

-- What stands for the permits of a claim of ours among those with a lease: the id itself for the first.
local function permit(id, number)
  if number == 1 then return unhex(id) end
  return unhex(string.sub(redis.sha1hex(id .. ':' .. number), 1, 32))
end

-- The key of one hold of a reader.
local function hold_key(owner, number) return braced .. ':' .. owner .. ':rwlock_timeout:' .. number end

local function ttl_of(name)
  local ms = redis.call('PTTL', name)
  return ms < 0 and -1 or ms * 1000
end

-- Who holds: { id, owner, kind, weight, holds, left }, -1 left for those without an end.
local form, mode, free, holders = redis.call('TYPE', key).ok, nil, 0, {}

if form == 'hash' then
  mode = redis.call('HGET', key, 'mode')
  if mode and mode ~= 'read' and mode ~= 'write' or not mode and redis.call('HLEN', key) ~= 1 then
    return { 'foreign', 'a hash of another program' }
  end
  form = mode and 'rw' or 'lock'
  local fields, left, all = redis.call('HGETALL', key), ttl_of(key), 0
  -- Before anything is done as often as a number says: any number may stand in a hash of another program.
  for at = 1, #fields, 2 do
    local holds = tonumber(fields[at + 1])
    if not (mode and fields[at] == 'mode') then
      if not (holds and holds >= 1 and holds % 1 == 0) then return { 'foreign', 'a hash of another program' } end
      all = all + holds
    end
  end
  if not (all <= MOST) then return { 'foreign', 'a hash of another program' } end
  for at = 1, #fields, 2 do
    local field, holds = fields[at], tonumber(fields[at + 1])
    if not (mode and field == 'mode') then
      local writer = mode and string.match(field, '^(.*):write$')
      local h = { owner = writer or field, weight = 0, holds = holds, left = left, kind = 'mutex' }
      h.id = id_of(h.owner)
      if writer then
        h.kind = 'write'
      elseif mode then
        h.kind, h.weight, h.left = 'read', 1, -1
        for number = 1, holds do h.left = math.max(h.left, ttl_of(hold_key(h.owner, number))) end
      end
      holders[#holders + 1] = h
    end
  end
elseif form == 'string' or (form == 'none' and redis.call('EXISTS', permits_key) == 1) then
  free = form == 'string' and whole(redis.call('GET', key)) or nil
  if form == 'string' and not free then return { 'foreign', 'a string that is no number of permits' } end
  form = 'permits'
  local listed = redis.pcall('ZRANGE', permits_key, 0, -1, 'WITHSCORES')
  if listed.err then return { 'foreign', 'permits of another type' } end
  local whose = {}
  for id, claim in pairs(ours) do
    for number = 1, claim.weight or 0 do whose[permit(id, number)] = id end
  end
  local known = {}
  for at = 1, #listed, 2 do
    local member, ends = listed[at], tonumber(listed[at + 1])
    local id = whose[member] or (#member == 16 and hex(member)) or id_of(member)
    local left = ends >= NEVER and -1 or math.max((ends - now_ms) * 1000, 0)
    local h = known[id]
    if not h then
      h = { id = id, owner = id, kind = 'semaphore', weight = 0, holds = 1, left = left, members = {} }
      known[id], holders[#holders + 1] = h, h
    end
    h.weight, h.members[#h.members + 1] = h.weight + 1, member
  end
elseif form ~= 'none' then
  return { 'foreign', 'a value of another type' }
end

local function find(id)
  for at, h in ipairs(holders) do
    if h.id == id then return h, at end
  end
end

-- How long until something that is in the way ends by itself; -1 if nothing does.
local function soonest()
  if form == 'lock' or form == 'rw' then return ttl_of(key) end
  local least = -1
  for _, h in ipairs(holders) do
    if h.left >= 0 and (least < 0 or h.left < least) then least = h.left end
  end
  return least
end

-- The next fence, and what it must be larger than: also than the token that a program of theirs was given.
local token = redis.pcall('GET', token_key)
if type(token) == 'table' or (token and not whole(token)) then return { 'foreign', 'a token that is no number' } end
token = tonumber(token or nil)
local function raise(fence)
  last_fence = fence
  if token or TOKENS then
    token = fence
    redis.call('SET', token_key, fence)
  end
end
