-- What may be done to an object, so that programs of theirs see what they would have done themselves.

local function keep_ending(id, by, why)
  if #endings >= MOST_ENDINGS then table.remove(endings, 1) end
  table.insert(endings, { id = id, by = by, why = why })
  dirty = true
end

-- Who is next in their fair queue. A waiter that does not wait any more is removed, as their own release does.
local function fair_head()
  -- A bound, because any list may be there. What is left is taken out next time.
  for _ = 1, MOST do
    local head = redis.pcall('LINDEX', queue, 0)
    if type(head) ~= 'string' then return end
    local till = redis.pcall('ZSCORE', waits, head)
    if type(till) == 'table' or (till and tonumber(till) > now_ms) then return head end
    redis.call('LPOP', queue)
    redis.call('ZREM', waits, head)
  end
end

-- Tells those who wait for a lock. Theirs in a fair queue listen to channels of their own.
local function tell_lock()
  tell(LOCK, '0')
  local head = fair_head()
  if head then tell(LOCK .. ':' .. head, '0') end
end

-- Ends a hold, and tells those who wait.
local function free_hold(h, at)
  table.remove(holders, at)
  if h.kind == 'semaphore' then
    for _, member in ipairs(h.members) do redis.call('ZREM', permits_key, member) end
    free = redis.call('INCRBY', key, #h.members)
    tell(PERMITS, free)
  elseif h.kind == 'mutex' then
    redis.call('DEL', key)
    form = 'none'
    tell_lock()
  else
    redis.call('HDEL', key, h.kind == 'write' and h.owner .. ':write' or h.owner)
    for number = 1, h.kind == 'read' and h.holds or 0 do redis.call('DEL', hold_key(h.owner, number)) end
    if #holders == 0 then
      redis.call('DEL', key)
      form, mode = 'none', nil
    elseif h.kind == 'write' then
      mode = 'read'
      redis.call('HSET', key, 'mode', 'read')
    elseif mode == 'read' then
      -- It lives as long as the last of those who are left. One of theirs may live longer than it seems: some of their
      -- versions renew the hash alone.
      local longest = 0
      for _, other in ipairs(holders) do
        if other.left < 0 or other.owner ~= owner_of(other.id) then return tell(RW, '0') end
        longest = math.max(longest, other.left)
      end
      redis.call('PEXPIRE', key, math.max(math.ceil(longest / 1000), 1))
    end
    tell(RW, h.kind == 'write' and '1' or '0')
  end
end

-- Lets a hold end so many milliseconds from now; `only_sooner` if that is not later than it would.
local function end_in(h, ms, only_sooner)
  if only_sooner and h.left >= 0 and h.left <= ms * 1000 then return end
  h.left = ms * 1000
  if h.kind == 'semaphore' then
    for _, member in ipairs(h.members) do redis.call('ZADD', permits_key, 'XX', now_ms + ms, member) end
  elseif h.kind == 'read' then
    for number = 1, h.holds do redis.call('PEXPIRE', hold_key(h.owner, number), ms) end
    local left = redis.call('PTTL', key)
    if left >= 0 and left < ms then redis.call('PEXPIRE', key, ms) end
  else
    redis.call('PEXPIRE', key, ms)
  end
end

-- Removes what has run out: permits with their lease, and readers of ours, which no other program removes while others
-- read.
for at = #holders, 1, -1 do
  local h = holders[at]
  if (h.kind == 'semaphore' and h.left == 0) or (h.kind == 'read' and h.left < 0 and h.owner == owner_of(h.id)) then
    free_hold(h, at)
  end
end

-- A claim of ours that does not hold any more ran out, unless it had time left: then a program of theirs ended it.
for id, claim in pairs(ours) do
  local h, at = find(id)
  local why = 'it was force-unlocked, or its key was deleted, before its lease ended'
  if h and h.kind == 'semaphore' and h.weight < (claim.weight or 0) then
    -- A program of theirs whose clock is ahead took some of its permits: it has all of them or none.
    free_hold(h, at)
    h, why = nil, 'some of its permits were taken before their lease ended'
  end
  if not h then
    if claim.by then
      keep_ending(id, claim.by, claim.why)
    elseif claim.till - now > 10000 then
      keep_ending(id, 'another program', why)
    end
    ours[id], dirty = nil, true
  end
end

-- Until when a memo must be remembered.
local memo_until = 0

-- Stores what we keep, and gives the answer.
local function finish(answer)
  if not dirty then return answer end
  local last, fields, gone = now, { 'format', FORMAT, 'fence', last_fence }, {}
  for _, claim in pairs(ours) do last = math.max(last, claim.till) end
  local function put(field, value, was)
    if value then
      fields[#fields + 1], fields[#fields + 2] = field, value
    elseif was then
      gone[#gone + 1] = field
    end
  end
  put('ours', next(ours) and cmsgpack.pack(ours), stored[3])
  put('graves', endings[1] and cmsgpack.pack(endings), stored[4])
  put('memo', memo, stored[5])
  put('cap', cap, stored[6])
  redis.call('HSET', side, unpack(fields))
  if gone[1] then redis.call('HDEL', side, unpack(gone)) end
  -- A fence that was given while the clock was ahead is kept until the clock has passed it: else the next one would be
  -- smaller.
  local ms = math.ceil((math.max(last, last_fence) - now) / 1000) + KEEP_MS
  -- What a memo was promised is not shortened.
  if memo then ms = math.max(ms, math.ceil((memo_until - now) / 1000), redis.call('PTTL', side)) end
  redis.call('PEXPIRE', side, ms)
  return answer
end

