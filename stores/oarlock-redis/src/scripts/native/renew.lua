-- The long way of a renewal. Its header is in renew.alone.lua.

expire()
local at, me = find(id)
if not me then
  for _, ended in ipairs(endings()) do
    if ended.id == id then return finish({ 'gone', ending(ended) }) end
  end
  return finish({ 'gone' })
end

-- Its client holds by a grant that this server has forgotten: what is left is the position that it had before.
if held and not me.fence then
  remove(at)
  return finish({ 'gone' })
end

dirty = true
if me.handed and (held or how ~= KEEP or leaves) then take(me) end
if not me.fence or me.handed then
  -- Its turn must be taken; staying alive is not enough to sit on it.
  if not me.handed then
    if not me.by then me.till, me.lease = now + waiter_ttl, waiter_ttl end
    me.behind, me.sent, me.unheard = behind, there(sent), me.unheard and sent == 0
    touched[me] = true
  end
  return finish({ 'alive', ends_at(me) - now, -1 })
end

local fence = me.fence
if how ~= KEEP then
  local to = how == LEAST and number or last_fence + number
  if to >= FENCES then return finish({ 'exhausted' }) end
  last_fence = math.max(last_fence, to)
  fence = math.max(last_fence, fence)
  -- A reserved block belongs to the claim, but its own fence stays what its holder was given.
  if how == LEAST then me.fence = fence end
end
leave_memo()
if not me.by then me.till, me.lease = now + ttl, ttl end
me.value = value
local by, why = ending(me)
return finish({ 'alive', me.till - now, fence, by, why })
