-- Takes, keeps or refuses a place. The same id takes one place, and keeps its fence.
--
-- KEYS, ARGV[1]  see rule.lua
-- ARGV[2..]      id, session, kind, weight, fair (0 or 1), wait (0 or 1), behind, lease, lease of a place,
--                what is said of the capacity ('any', 'fixed' or 'adopt'), capacity, label,
--                value ('' = none, else '=' and the value)
-- answer         'granted', fence, lease, memo or nil | 'pending', ahead, microseconds until to look again or -1
--                | 'mismatch', stored capacity | 'heavy', capacity | 'upgrade' | 'exhausted'

local id, session, kind = ARGV[2], ARGV[3], ARGV[4]
local weight, fair, wait, behind = tonumber(ARGV[5]), ARGV[6] == '1', ARGV[7] == '1', tonumber(ARGV[8])
local ttl, place_ttl = tonumber(ARGV[9]), tonumber(ARGV[10])
local said, asked, label, value = ARGV[11], tonumber(ARGV[12]), ARGV[13], ARGV[14]

local function pending(at)
  local fair_now, ahead, soonest = is_fair(), 0, nil
  for i, e in ipairs(entries) do
    if i ~= at then
      if i < at or e.fence then ahead = ahead + 1 end
      if (e.fence or (fair_now and i < at)) and not (soonest and soonest < ends(e)) then soonest = ends(e) end
    end
  end
  return { 'pending', ahead, soonest and soonest - now or -1 }
end

expire()
local at, me = find(id)

if me and me.fence then
  if me.weight > 0 and (weight == 0 or weight > me.weight) then return finish({ 'upgrade' }) end
  changed = changed or me.weight ~= weight
  me.weight, me.kind = weight, kind
  if not me.by then me.till = now + ttl end
  dirty = true
  call()
  return finish({ 'granted', me.fence, me.till - now, memo })
end

if said == 'fixed' and state.cap and state.cap ~= asked then return finish({ 'mismatch', state.cap }) end
local limit = state.cap or (said == 'any' and 1) or asked
if weight > 0 and limit > 0 and weight > limit then return finish({ 'heavy', limit }) end

at = at or #entries + 1
local in_order, load = fair or is_fair(), no_load()
for i, e in ipairs(entries) do
  if i ~= at and (e.fence or (in_order and i < at)) then add(load, e.weight) end
end
local fits = bears(load, weight, limit)
if not fits and not wait then
  local answer = pending(at)
  if me then remove(at) end
  return finish(answer)
end
local fence = math.max(state.fence + 1, now)
if fits and fence >= FENCES then return finish({ 'exhausted' }) end

if said ~= 'any' and not state.cap then state.cap = asked end
if not me then
  me = { id = id, session = session, kind = kind, weight = weight, fair = fair, since = now }
  if value ~= '' then me.value = string.sub(value, 2) end
  entries[at] = me
  fields = { id, label }
  changed = true
end
me.behind = behind
dirty = true
if not fits then
  me.till = now + place_ttl
  call()
  return finish(pending(at))
end
me.fence, me.since, me.till, me.turn = fence, now, now + ttl, nil
state.fence = fence
changed = true
for i = #calls, 1, -1 do
  if calls[i] == me then table.remove(calls, i) end
end
call()
return finish({ 'granted', fence, ttl, memo })
