-- The long way of an attempt. Its header is in attempt.free.lua.

-- The claim, as it is stored when it arrives.
local function arriving(seq, lease)
  return struct.pack(ENTRY, now + lease, lease, 0, 0, 0, 0, now, seq, weight, 0, behind)
    .. string.sub(ARGV[1], REQUEST_SIZE + 1)
end

local function memo_left() return left == 1 and redis.call('HGET', key, 'memo') end

local function pending(at)
  local ahead, soonest = 0, nil
  for i, e in ipairs(entries) do
    if i ~= at then
      if i < at or e.fence then ahead = ahead + 1 end
      if (e.fence or (i < at and not e.unheard)) and not (soonest and soonest < ends_at(e)) then
        soonest = ends_at(e)
      end
    end
  end
  return { 'pending', ahead, soonest and soonest - now or -1 }
end

-- The claim that asks need not be notified.
local function forget_call(me)
  for i = #to_notify, 1, -1 do
    if to_notify[i] == me then table.remove(to_notify, i) end
  end
end

expire()
local at, me = find(id)

if me and me.fence then
  if me.weight > 0 and (weight == 0 or weight > me.weight) then return finish({ 'upgrade' }) end
  changed = changed or me.weight ~= weight
  me.weight, me.kind = weight, entry_of(arriving(me.seq, ttl)).kind
  take(me)
  forget_call(me)
  if not me.by then me.till, me.lease = now + ttl, ttl end
  dirty = true
  notify_next()
  return finish({ 'granted', me.fence, me.till - now, memo_left() })
end

if said == FIXED and cap >= 0 and cap ~= asked then return finish({ 'mismatch', cap }) end
if cap >= 0 then limit = cap end
if weight > 0 and limit > 0 and weight > limit then return finish({ 'heavy', limit }) end

at = at or #entries + 1
local load = no_load()
for i, e in ipairs(entries) do
  if i ~= at and (e.fence or (i < at and not e.unheard)) then add(load, e.weight) end
end
local fits = bears(load, weight, limit)
if not fits and not wait then
  local answer = pending(at)
  if me then remove(at) end
  return finish(answer)
end
if fits and next_fence() >= FENCES then return finish({ 'exhausted' }) end

if said ~= ANY and cap < 0 then cap = asked end
if not me then
  tail = tail + 1
  me = entry_of(arriving(tail, waiter_ttl))
  entries[at] = me
  changed = true
end
me.behind, me.unheard = behind, false
touched[me], dirty = true, true
-- A claim that was asked to end gets no more time, waiting or holding.
if not me.by then
  me.lease = fits and ttl or waiter_ttl
  me.till = now + me.lease
end
if not fits then
  me.sent = there(sent)
  notify_next()
  return finish(pending(at))
end
last_fence = next_fence()
me.fence, me.since, me.turn, me.sent = last_fence, now, nil, nil
changed = true
forget_call(me)
notify_next()
return finish({ 'granted', me.fence, me.till - now, memo_left() })
