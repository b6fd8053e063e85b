-- Reads a resource. It goes before each of the other scripts, after a line that says how to publish.
--
-- KEYS[1]  the resource, a hash:
--            format  the version of this layout
--            fence   the largest fence given or reserved so far
--            state   MessagePack; absent while nobody holds or waits:
--                      cap      the capacity, if somebody stated one
--                      entries  those who hold, in order of arrival
--                      last     the millisecond at which nobody is left, or later
--                      tail     the number of whoever came last
--                      count, head, soon: how many wait; the number before the first of them; when the first of them
--                      runs out, or sooner. Absent while nobody waits
--            w<n>    MessagePack of the waiter with this number
--            graves  MessagePack of { id, by, why } of claims that were broken; absent while there are none
--            memo    the bytes that a holder left
--            ends    the millisecond at which the key ends by itself
--            <id>    the label of that claim, in JSON
-- KEYS[2]  the index, a sorted set: the keys in use, by the millisecond at which the last claim of each ends
-- ARGV[1]  what goes before a session to name the channel of its mailbox
-- answer   'foreign', why | 'newer', format: the key is not ours, and is left as it is
--
-- Times are in microseconds. 0 stands for everything as a weight, and for no limit as a capacity.

local key, index, mail = KEYS[1], KEYS[2], ARGV[1]
local FORMAT, FENCES = '1', 9007199254740992

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local stored = redis.pcall('HMGET', key, 'format', 'fence', 'state', 'graves', 'memo', 'ends')
if stored.err then
  if string.find(stored.err, 'WRONGTYPE', 1, true) then return { 'foreign', 'a value of another type' } end
  return stored
end
local format, last_fence, memo = stored[1], 0, stored[5]
if format == FORMAT then
  last_fence = tonumber(stored[2])
  if not last_fence then return { 'foreign', 'a fence that is no number' } end
elseif format then
  if string.find(format, '^%d+$') then return { 'newer', format } end
  return { 'foreign', 'a format that is no number' }
elseif redis.call('EXISTS', key) == 1 then
  return { 'foreign', 'a hash of another program' }
end

local function unpacked(packed, empty)
  if not packed then return true, empty end
  return pcall(cmsgpack.unpack, packed)
end

local whole, state = unpacked(stored[3], { entries = {} })
if not whole or type(state) ~= 'table' or type(state.entries) ~= 'table' then
  return { 'foreign', 'a state that cannot be read' }
end

-- When the key must end by itself, if it is written now and its last claim ends then. An hour more, so that it is
-- seldom told.
local function ends(last_ms)
  local wanted = last_ms + 86400000
  if tonumber(stored[6] or 0) < wanted then return wanted + 3600000 end
end

-- Notes in the index that the key is in use until then. The index outlives the longest lease.
local function enlist(last_ms, anew)
  if redis.call('ZADD', index, last_ms, key) == 1 or anew then redis.call('PEXPIRE', index, 2764800000) end
end

