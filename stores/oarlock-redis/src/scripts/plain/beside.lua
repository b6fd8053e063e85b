-- Reads what only we keep of a lock: see load.lua.

local stored = redis.pcall('HMGET', side, 'fence', 'held', 'memo', 'kept', 'broken', 'by', 'why')
if stored.err then
  if string.find(stored.err, 'WRONGTYPE', 1, true) then return { 'foreign', 'a side key of another type' } end
  return stored
end
-- Not 'nan' or 'inf' either, which Lua takes for numbers.
if stored[1] and not string.find(stored[1], '^%d+$') then
  return { 'foreign', 'a fence that is no number, in its side key' }
end
local last_fence, memo = tonumber(stored[1] or 0), stored[3]

-- The fence of the holder, if it is the claim of ours that had the lock last; 0 if not.
local held_id, held_own, held_since = string.match(stored[2] or '', '^(%S+) (%d+) (%d+)$')
local own = token and held_id == token and tonumber(held_own) or 0

-- Who asked a claim of ours to end, and why; false unless it was asked.
local function broken(id)
  if stored[5] == id then return stored[6], stored[7] end
  return false, false
end

local DAY_MS = 86400000

-- Lets what is kept beside the lock outlive its lease by a day.
local function keep(ttl_ms)
  local time = call('TIME')
  local kept = time[1] * 1000 + ttl_ms + DAY_MS
  if (tonumber(stored[4] or 0) or 0) >= kept then return end
  stored[4] = kept + 3600000
  call('HSET', side, 'kept', string.format('%.0f', stored[4]))
  call('PEXPIRE', side, ttl_ms + DAY_MS + 3600000)
end

