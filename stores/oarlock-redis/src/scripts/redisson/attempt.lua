-- Takes or refuses a hold. The same id takes it once, and keeps its fence.
--
-- KEYS, ARGV[1]  see load.lua
-- ARGV[2..]      as for the native layout; waiting means nothing here, the kind says what the object is
-- answer         'granted', fence, lease, memo or nil | 'pending', -1, microseconds until to look again or -1
--                | 'mismatch', stored capacity | 'heavy', capacity | 'upgrade' | 'exhausted'

local id, session, kind, weight = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local ttl_ms = math.floor(tonumber(ARGV[8]) / 1000)
local said, asked, label, value = ARGV[10], tonumber(ARGV[11]), ARGV[12], ARGV[13]
-- A reader of theirs sets the end of all readers to half a minute at each of its renewals, and may die after one.
if kind == 'read' then ttl_ms = math.min(ttl_ms, THEIRS_MS) end
local owner = owner_of(id)
local LOOK = 500000

-- A semaphore that was deleted has no capacity any more.
if form == 'none' then cap = nil end

local wanted = 'lock'
if kind == 'read' or kind == 'write' then wanted = 'rw' elseif kind == 'semaphore' then wanted = 'permits' end
if form ~= 'none' and form ~= wanted then
  local names = { lock = 'a lock', rw = 'a read-write lock', permits = 'a semaphore' }
  return finish({ 'foreign', names[form] .. ', which is another object in Redisson' })
end

local h, claim = find(id), ours[id]
if h and claim then
  if (kind == 'write' and h.kind == 'read') or (h.kind == 'semaphore' and weight > h.weight) then
    return finish({ 'upgrade' })
  end
  if kind == 'read' and h.kind == 'write' then
    -- It becomes a reader without letting go. Their own way publishes nothing here, and lets readers sleep.
    redis.call('HDEL', key, owner .. ':write')
    redis.call('HSET', key, 'mode', 'read', owner, 1)
    redis.call('SET', hold_key(owner, 1), 1, 'PX', math.max(math.ceil(h.left / 1000), 1))
    h.kind, h.weight = 'read', 1
    tell(RW, '1')
  elseif h.kind == 'semaphore' and weight < h.weight then
    for number = weight + 1, h.weight do redis.call('ZREM', permits_key, permit(id, number)) end
    tell(PERMITS, redis.call('INCRBY', key, h.weight - weight))
    for _ = weight + 1, h.weight do table.remove(h.members) end
    h.members, h.weight = {}, weight
    for number = 1, weight do h.members[number] = permit(id, number) end
  end
  claim.kind, claim.weight, dirty = kind, h.weight, true
  if not claim.by then
    end_in(h, ttl_ms)
    claim.till = now + ttl_ms * 1000
  end
  return finish({ 'granted', claim.fence, math.max(h.left, 0), memo })
end

if wanted == 'permits' then
  local units = 0
  for _, other in ipairs(holders) do units = units + other.weight end
  -- They made it larger, or deleted it and set it up anew.
  if cap and units + (free or 0) > cap then cap, dirty = units + (free or 0), true end
  if said == 'fixed' and cap and cap ~= asked then return finish({ 'mismatch', cap }) end
  local most = cap or (form == 'none' and said ~= 'any' and asked)
  if most and weight > most then return finish({ 'heavy', most }) end
  if said ~= 'any' and (form == 'none' or not free) then
    -- No program has set it up yet.
    cap, free, form, dirty = asked, math.max(asked - units, 0), 'permits', true
    redis.call('SET', key, free)
    if free > weight then tell(PERMITS, free) end
  end
end

local fits = form == 'none'
if wanted == 'permits' then
  fits = (free or 0) >= weight
elseif kind == 'read' then
  fits = fits or mode == 'read'
end
-- What is ours already, though we forgot its fence, is granted anew.
if not fits and not h then
  local look = soonest()
  -- Their fair lock tells its own queue alone, their spin lock no waiter; and neither looks different from the others.
  -- Nor do they notify when a writer stays as a reader. In a cluster their versions before 3.22 tell every node of it,
  -- which is nothing that we listen to. Permits of theirs may have no owner.
  local unheard, theirs = PUBLISH == 'SPUBLISH', wanted == 'permits'
  for _, other in ipairs(holders) do theirs = theirs or other.owner ~= owner_of(other.id) end
  if theirs and (form == 'lock' or unheard or (kind == 'read' and mode == 'write')) then
    look = math.min(look < 0 and LOOK or look, LOOK)
  end
  return finish({ 'pending', -1, look })
end
-- A number that was proposed counts if it is within a minute of the clock, else the end of that minute.
local proposed = math.min(math.max(tonumber(ARGV[14]) or now, now - 60000000), now + 60000000)
local fence = math.max(last_fence + 1, (token or 0) + 1, proposed)
if fence >= FENCES then return finish({ 'exhausted' }) end

if h then
  end_in(h, ttl_ms)
elseif wanted == 'permits' then
  redis.call('DECRBY', key, weight)
  for number = 1, weight do redis.call('ZADD', permits_key, now_ms + ttl_ms, permit(id, number)) end
  local left = redis.call('PTTL', key)
  if left > 0 then redis.call('PEXPIRE', permits_key, left) end
elseif kind == 'read' then
  redis.call('HSET', key, 'mode', 'read', owner, 1)
  redis.call('SET', hold_key(owner, 1), 1, 'PX', ttl_ms)
  if redis.call('PTTL', key) < ttl_ms then redis.call('PEXPIRE', key, ttl_ms) end
else
  if kind == 'write' then
    redis.call('HSET', key, 'mode', 'write', owner .. ':write', 1)
  else
    redis.call('HSET', key, owner, 1)
  end
  redis.call('PEXPIRE', key, ttl_ms)
end
if wanted == 'lock' then raise(fence) else last_fence = fence end
ours[id] = {
  fence = fence, session = session, kind = kind, since = now, till = now + ttl_ms * 1000, weight = weight,
  label = label, value = value ~= '' and string.sub(value, 2) or nil,
}
dirty = true
redis.call(PUBLISH, side, '')
return finish({ 'granted', fence, ttl_ms * 1000, memo })
