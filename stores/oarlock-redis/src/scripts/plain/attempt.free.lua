-- Takes a lock that is free, unless it is the turn of another claim. This goes before everything else, because little
-- needs to be known for it.
--
-- KEYS     see load.lua
-- ARGV[1]  id
-- ARGV[2]  lease, in milliseconds
-- ARGV[3]  the fence to give if no larger one was given before, at most a minute from the clock; '' = by the clock
-- ARGV[4]  who it is, as it is kept: see load.lua
-- ARGV[5]  what the queue keeps of it, see queue.lua; '' if it never waits there
-- ARGV[6]  1 if it joins the queue, 0 if no client would hear of its turn now
-- ARGV[7]  its value; nothing if it has none
-- answer   the fence, of a whole lease without a memo; or see attempt.lua

local FENCES, MINUTE = 9007199254740992, 60000000
-- What is kept beside a lock stays for a day after its lease. It is given an hour more at a time, so that most calls
-- need not.
local KEEP_MS, MORE_MS = 86400000, 3600000

local call = redis.call
local key, side, queue, id, ttl_ms, waits, joins = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[5], ARGV[6] == '1'

local known = redis.pcall('HMGET', side, 'fence', 'memo', 'kept', 'quiet', 'turn')
if known.err then
  if string.find(known.err, 'WRONGTYPE', 1, true) then return { 'foreign', 'a side key of another type' } end
  return known
end
if known[1] and not string.find(known[1], '^%d+$') then
  return { 'foreign', 'a fence that is no number, in its side key' }
end

-- Whose turn it is, until when, and since when it waits.
local turn, turn_until, turn_since = turn_of(known[5])
local turn_left = turn and turn_until - micros() or 0

-- Gives the lock, which this claim has just got, its fence and its holder.
local function give()
  -- A fence that was proposed is the same on all servers that are asked at once: their clocks must not spoil that.
  -- Numbers are passed on as text, as they came, because to format them is dear.
  local time = call('TIME')
  local since = time[1] .. string.sub('00000' .. time[2], -6)
  local text = ARGV[3] ~= '' and ARGV[3] or since
  local proposed, now, last = tonumber(text), tonumber(since), tonumber(known[1] or 0)
  -- But a client whose clock is wrong must not decide the fences of all: what is kept here may be forgotten, and they
  -- would fall.
  local fence = math.min(math.max(proposed, now - MINUTE), now + MINUTE)
  if fence <= last then fence = last + 1 end
  if fence ~= proposed then text = string.format('%.0f', fence) end
  if fence >= FENCES then
    call('DEL', key)
    return { 'exhausted' }
  end
  local held = id .. ' ' .. text .. ' ' .. since
  if known[4] or call(PUBLISH, side .. ':changes', '') > 0 then
    call('HSET', side, 'fence', text, 'held', held, 'who', ARGV[4])
  else
    call('HSET', side, 'fence', text, 'held', held, 'who', ARGV[4], 'quiet', 1)
  end
  if turn and (turn == waits or turn_left <= 0) then call('HSET', side, 'turn', '') end
  -- An earlier attempt, whose answer may be lost, may have put it there.
  if turn ~= waits and waits ~= '' then redis.pcall('ZREM', queue, waits) end
  if ARGV[7] then call('HSET', side, 'value', id .. ARGV[7]) end
  local kept = now / 1000 + ttl_ms + KEEP_MS
  if (tonumber(known[3] or 0) or 0) < kept then
    call('HSET', side, 'kept', string.format('%.0f', kept + MORE_MS))
    call('PEXPIRE', side, ttl_ms + KEEP_MS + MORE_MS)
  end
  if known[2] then return { 'granted', fence, ttl_ms * 1000, known[2] } end
  return fence
end

-- A claim that does not queue takes what is free.
local is_turn_of_another = joins and turn and turn ~= waits and turn_left > 0 and turn_left <= TURN
if not is_turn_of_another and call('SET', key, id, 'NX', 'PX', ttl_ms) then return give() end

