-- Shows an object, and changes nothing.
--
-- KEYS, ARGV[1]  see load.lua
-- answer         as for the native layout; a holder of another program is labelled with what it calls itself

local units = 0
for _, h in ipairs(holders) do units = units + h.weight end
local capacity = -1
if form == 'rw' then capacity = 0 elseif form == 'permits' then capacity = math.max(cap or 0, units + (free or 0)) end
-- The capacity of a semaphore of theirs is unknown when all permits are taken; 0 would mean that there is no limit.
if form == 'permits' and capacity < 1 then capacity = -1 end

local function theirs(owner, holds) return cjson.encode({ tags = { redisson = owner, holds = tostring(holds) } }) end

local answer = { 'shown', capacity, last_fence, memo }
for _, h in ipairs(holders) do
  local claim = ours[h.id]
  -- A reader of ours that has run out stays in the hash until the next request; one of theirs may be alive.
  local over = h.left == 0 or (h.kind == 'read' and h.left < 0 and h.owner == owner_of(h.id))
  if claim then
    answer[#answer + 1] = not over and {
      h.id, claim.kind, h.weight, claim.fence, math.max(now - claim.since, 0), math.max(h.left, 0), 0, claim.label,
      claim.value or false, claim.by or false, claim.why or false,
    } or nil
  elseif not over then
    answer[#answer + 1] =
      { h.id, h.kind, h.weight, -1, 0, math.max(h.left, 0), 0, theirs(h.owner, h.holds), false, false, false }
  end
end
-- Permits without a lease have no owner: all that is known is how many are missing.
local missing = form == 'permits' and cap and cap - units - (free or 0) or 0
if missing > 0 then
  local id = string.sub(redis.sha1hex(key), 1, 32)
  local label = theirs('permits without a lease', missing)
  answer[#answer + 1] = { id, 'semaphore', missing, -1, 0, 0, 0, label, false, false, false }
end
return answer
