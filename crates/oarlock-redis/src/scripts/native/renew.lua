-- Keeps a claim alive, holder or waiter.
--
-- KEYS, ARGV[1]  see load.lua
-- ARGV[2..]      id, behind, lease, lease of a place, what to do with the fences ('keep', 'least' or 'reserve'),
--                the least fence or how many, value, memo ('' = none, else '=' and the bytes)
-- answer         'alive', lease, largest fence or -1 for a waiter, by and why if somebody asked for its end
--                | 'gone' and by, why if it was broken | 'exhausted'

local id, behind, ttl, place_ttl = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local how, number, value, left = ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9]

-- Names that ran out leave the index by the renewals of others. It comes first: after a write that needs no memory, a full
-- server lets the others pass, and so never ends a hold.
redis.call('ZREMRANGEBYSCORE', index, '-inf', math.floor(now / 1000))
expire()
local _, me = find(id)
if not me then
  for _, grave in ipairs(graves()) do
    if grave.id == id then return finish({ 'gone', grave.by, grave.why }) end
  end
  return finish({ 'gone' })
end

dirty = true
if not me.fence then
  me.behind, me.till = behind, now + place_ttl
  -- Its turn must be taken by an attempt; staying alive is not enough to sit on it.
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
if not me.by then me.till = now + ttl end
if value == '' then me.value = nil else me.value = string.sub(value, 2) end
return finish({ 'alive', me.till - now, fence, me.by or false, me.why or false })
