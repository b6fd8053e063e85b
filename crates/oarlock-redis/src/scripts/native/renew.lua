-- The long way of a renewal. Its header is in renew.alone.lua.

expire()
local _, me = find(id)
if not me then
  for _, grave in ipairs(graves()) do
    if grave.id == id then return finish({ 'gone', grave.by, grave.why }) end
  end
  return finish({ 'gone' })
end

dirty = true
if me.handed and (held or how ~= 'keep' or left ~= '') then take(me) end
if not me.fence or me.handed then
  -- Its turn must be taken; staying alive is not enough to sit on it.
  if not me.handed then
    me.behind, me.till, me.lease, me.sent = behind, now + place_ttl, place_ttl, sent ~= '0' and sent or nil
    touched[me] = true
  end
  return finish({ 'alive', ends_at(me) - now, -1 })
end

local fence = me.fence
if how ~= 'keep' then
  local to = how == 'least' and number or last_fence + number
  if to >= FENCES then return finish({ 'exhausted' }) end
  last_fence = math.max(last_fence, to)
  fence = math.max(last_fence, fence)
  -- A reserved block belongs to the claim, but its own fence stays what its holder was given.
  if how == 'least' then me.fence = fence end
end
if left ~= '' then
  fields[#fields + 1] = 'memo'
  fields[#fields + 1] = string.sub(left, 2)
end
if not me.by then me.till, me.lease = now + ttl, ttl end
if value == '' then me.value = nil else me.value = string.sub(value, 2) end
return finish({ 'alive', me.till - now, fence, me.by or false, me.why or false })
