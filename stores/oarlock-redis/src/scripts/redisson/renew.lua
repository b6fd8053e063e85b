-- Keeps a holder alive.
--
-- KEYS, ARGV[1]  see load.lua
-- ARGV[2..]      id, behind, lease, lease of a position, what to do with the fences ('keep', 'least' or 'reserve'),
--                the least fence or how many, value, memo ('' = none, else '=' and the bytes), two that mean nothing
--                here, how long the memo must be remembered at least
-- answer         'alive', lease, largest fence, by and why if it was asked to end
--                | 'gone' and by, why if others ended it | 'exhausted'

local id, ttl_ms, how, number = ARGV[2], math.floor(tonumber(ARGV[4]) / 1000), ARGV[6], tonumber(ARGV[7])
local value, memo_left = ARGV[8], ARGV[9]

local h, claim = find(id), ours[id]
if not h or not claim then
  for _, ended in ipairs(endings) do
    if ended.id == id then return finish({ 'gone', ended.by, ended.why }) end
  end
  -- Where only the hold is left, the fence that its holder was given is forgotten.
  return finish({ 'gone' })
end

if h.kind == 'read' then ttl_ms = math.min(ttl_ms, THEIRS_MS) end
local fence = claim.fence
if how ~= 'keep' then
  local to = math.max(last_fence, how == 'least' and number or last_fence + number)
  if to >= FENCES then return finish({ 'exhausted' }) end
  if form == 'lock' then raise(to) else last_fence = to end
  fence = math.max(to, fence)
  -- A reserved block belongs to the claim, but its own fence stays what its holder was given.
  if how == 'least' then claim.fence = fence end
end
dirty = true
if memo_left ~= '' then
  memo, memo_until = string.sub(memo_left, 2), now + tonumber(ARGV[12])
end
claim.value = value ~= '' and string.sub(value, 2) or nil
if claim.by then return finish({ 'alive', math.max(h.left, 0), fence, claim.by, claim.why }) end
end_in(h, ttl_ms)
claim.till = now + ttl_ms * 1000
return finish({ 'alive', ttl_ms * 1000, fence })
