-- Takes a lock that is free. This goes before everything else, because nothing needs to be known for it.
--
-- KEYS, ARGV[1]  see load.lua
-- ARGV[2..]      as for the native layout; weight, order, waiting and capacity mean nothing here
-- ARGV[15]       the fence to give if no larger one was given before, at most a minute from the clock; '' = by the clock
-- answer         see attempt.lua

local FENCES, MINUTE = 9007199254740992, 60000000
-- What is kept beside a lock stays for a day after its lease. It is given an hour more at a time, so that most calls need not.
local KEEP_MS, MORE_MS = 86400000, 3600000

local call = redis.call
local key, side, id, ttl_ms = KEYS[1], KEYS[2], ARGV[2], math.floor(ARGV[9] / 1000)

local function keep()
  if call('PTTL', side) < ttl_ms + KEEP_MS then call('PEXPIRE', side, ttl_ms + KEEP_MS + MORE_MS) end
end

-- Gives the lock, which this claim has just got, its fence and its holder.
local function give()
  local stored = redis.pcall('HMGET', side, 'fence', 'memo')
  if stored.err then
    call('DEL', key)
    if string.find(stored.err, 'WRONGTYPE', 1, true) then return { 'foreign', 'a side key of another type' } end
    return stored
  end
  -- A fence that was proposed is the same on all servers that are asked at once: their clocks must not spoil that. Numbers are
  -- passed on as text, as they came, because to format them is dear.
  local time = call('TIME')
  local since = time[1] .. string.sub('00000' .. time[2], -6)
  local text = ARGV[15] ~= '' and ARGV[15] or since
  local proposed, now, last = tonumber(text), tonumber(since), tonumber(stored[1] or 0) or 0
  -- But a client whose clock is wrong must not decide the fences of all: what is kept here may be forgotten, and they would fall.
  local fence = math.min(math.max(proposed, now - MINUTE), now + MINUTE)
  if fence <= last then fence = last + 1 end
  if fence ~= proposed then text = string.format('%.0f', fence) end
  if fence >= FENCES then
    call('DEL', key)
    return { 'exhausted' }
  end
  call(
    'HSET', side, 'fence', text, 'id', id, 'own', text, 'session', ARGV[3], 'kind', ARGV[4], 'since', since, 'label', ARGV[13],
    'value', ARGV[14]
  )
  keep()
  call(PUBLISH, side, '')
  return { 'granted', fence, ttl_ms * 1000, stored[2] }
end

if call('SET', key, id, 'NX', 'PX', ttl_ms) then return give() end

