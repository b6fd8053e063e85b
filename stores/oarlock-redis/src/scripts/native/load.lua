-- Reads a resource. It goes before each of the other scripts, after lines that say how to publish.
--
-- KEYS[1]  the resource, a hash:
--            format  the version of this layout
--            state   numbers (see HEAD), then those who hold, in order of arrival (see ENTRY)
--            w<n>    the waiter with this number (see ENTRY)
--            graves  MessagePack of { id, by, why } of claims that were broken; absent while there are none
--            memo    the bytes that a holder left
--            <id>    the number of that claim, a space, and its label in JSON
-- KEYS[2]  the index, a sorted set: the keys in use, by the millisecond at which the last claim of each ends
-- ARGV[1]  what goes before a session to name the channel of its mailbox
-- answer   'foreign', why | 'older', format | 'newer', format: the key is not ours, and is left as it is
--
-- Times are in microseconds. 0 stands for everything as a weight, and for no limit as a capacity.

local key, index, mail = KEYS[1], KEYS[2], ARGV[1]
local FORMAT, FENCES = '3', 9007199254740992
-- Numbers of claims stay below this: Lua writes larger ones with an exponent, in which they are not told apart.
local NUMBERS = 70368744177664

-- How long a turn may go untaken.
local TURN = 2000000

-- last_fence  the largest fence given or reserved so far
-- ends        the millisecond at which the key ends by itself
-- cap         the capacity, if a claim stated one, else -1
-- last        the millisecond at which no claim is left, or later
-- soon        when the first of those who hold or wait runs out, or sooner
-- count       how many wait: their numbers are larger than head, and not larger than tail
-- tail        no number of a claim is larger: it falls with those who leave, so that nothing is counted up to for them
-- holders     how many hold; only is the id of the one that does, if it is alone and was not asked to end
local HEAD, HEAD_SIZE = '>ddddddddI4c32', 100

-- First what changes: till, lease, fence, turn, handed, sent; then weight, deaf, behind, seq, since, id, session, kind,
-- value, by, why. What is not there is 0 or nothing; a value, by and why begin with '=' if they are there.
-- turn    when the turn that it was told of passes on
-- handed  when it was handed what it holds, while it has not said that it knows
-- sent    when its last request left, by its own clock, if it hears of its turn; negative if that must not be handed to it
-- deaf    it could not be notified of its turn, and is passed over until it asks again
local ENTRY = '>ddddddI4BI4ddc32c32Bc0I4c0I4c0I4c0'
local NO_CLAIM = string.rep(' ', 32)

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local last_fence, ends, cap, last, soon, count, head, tail, holders, only = 0, 0, -1, 0, 0, 0, 0, 0, 0, NO_CLAIM
-- The label of the claim that asks is there if it has a place.
local stored = redis.pcall('HMGET', key, 'format', 'state', 'memo', ARGV[2] or '')
if stored.err then
  if string.find(stored.err, 'WRONGTYPE', 1, true) then return { 'foreign', 'a value of another type' } end
  return stored
end
local packed, memo, known = stored[2], stored[3], stored[4]
if stored[1] == FORMAT then
  if not packed or #packed < HEAD_SIZE then return { 'foreign', 'a state that cannot be read' } end
  last_fence, ends, cap, last, soon, count, head, tail, holders, only = struct.unpack(HEAD, packed)
elseif stored[1] then
  if not string.find(stored[1], '^%d+$') then return { 'foreign', 'a format that is no number' } end
  return { tonumber(stored[1]) < tonumber(FORMAT) and 'older' or 'newer', stored[1] }
elseif redis.call('EXISTS', key) == 1 then
  return { 'foreign', 'a hash of another program' }
end

-- Not a number, endless, a fraction, or out of bounds: not written by these scripts. It must not be counted to, nor
-- granted.
local function is_whole(number, least, most) return number >= least and number <= most and number % 1 == 0 end

if
  not (
    is_whole(last_fence, 0, FENCES) and is_whole(ends, 0, FENCES) and is_whole(cap, -1, FENCES) and is_whole(last, 0, FENCES)
    and (is_whole(soon, 0, FENCES) or holders + count == 0) and is_whole(count, 0, NUMBERS) and is_whole(tail, 0, NUMBERS)
    and (count == 0 or is_whole(head, 0, tail - count))
  )
then
  return { 'foreign', 'numbers that no version of Oarlock writes, in the field state' }
end

-- Stores the numbers and those who hold, in a key that ends by itself a day after its last claim. An hour more, so that
-- it is seldom told.
local function keep(entries, ...)
  local anew = ends < last + 86400000
  if anew then ends = last + 90000000 end
  local state = struct.pack(HEAD, last_fence, ends, cap, last, soon, count, head, tail, holders, only) .. entries
  if anew then
    redis.call('HSET', key, 'format', FORMAT, 'state', state, ...)
    redis.call('PEXPIREAT', key, ends)
  else
    redis.call('HSET', key, 'state', state, ...)
  end
  return anew
end

-- Notes in the index that the key is in use. The index outlives the longest lease.
local function enlist(anew)
  if redis.call('ZADD', index, last, key) == 1 or anew then redis.call('PEXPIRE', index, 2764800000) end
end

