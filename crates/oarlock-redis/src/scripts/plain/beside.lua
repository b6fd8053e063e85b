-- Reads what only we keep of a lock: see load.lua.

local stored = redis.pcall('HMGET', side, 'fence', 'id', 'own', 'memo', 'broken', 'by', 'why')
if stored.err then
  if string.find(stored.err, 'WRONGTYPE', 1, true) then return { 'foreign', 'a side key of another type' } end
  return stored
end
local last_fence, memo = tonumber(stored[1] or 0) or 0, stored[4]

-- Who asked a claim of ours to end, and why; false unless it was asked.
local function broken(id)
  if stored[5] == id then return stored[6], stored[7] end
  return false, false
end

