-- Reads the state of a resource. It goes before each of the other scripts, after lines that say how to publish.
--
-- KEYS[1]  the resource, a hash:
--            format  the version of this layout, for programs that know another one
--            state   numbers (see HEAD)
--            w<n>    the claim with this number, holder or waiter (see ENTRY and BODY)
--            <id>    the number of that claim; the only holder has none, because the state names it
--            graves  MessagePack of { id, by, why } of claims that were broken; absent while there are none
--            memo    the bytes that a holder left
-- KEYS[2]  the index, a sorted set: the keys in use, by the millisecond at which the last claim of each has ended
-- ARGV[1]  the request, packed: each script says how
-- answer   'foreign', why | 'older', format | 'newer', format: the key is not ours, and is left as it is
--
-- Times are in microseconds. 0 stands for everything as a weight, and for no limit as a capacity. Numbers are stored
-- unsigned, so that none is a fraction or endless, whichever program wrote it.

local key, index = KEYS[1], KEYS[2]
local VERSION, FORMAT, FENCES = 4, '4', 9007199254740992
-- Numbers of claims stay below this: Lua writes larger ones with an exponent, in which they are not told apart.
local NUMBERS = 70368744177664

-- How long a turn may go untaken.
local TURN = 2000000

-- version     4
-- quiet       1 if no client listens to the channel of the resource: an observer that comes sets it to 0
-- left        1 if there is a memo
-- streak      how often in a row the resource was taken soon after it was free
-- holders     how many hold
-- cap         the capacity, if a claim stated one, else -1; one more is stored
-- last_fence  the largest fence given or reserved so far
-- ends        the millisecond at which the key ends by itself
-- last        when no claim is left, or later
-- soon        when the first claim runs out, or sooner; where there is no claim, since when
-- listed      until when the key is in the index; 0 if it is not
-- count       how many wait
-- head        the numbers of all claims but the only holder are larger
-- tail        no number of a claim is larger: it falls with those who leave, so that nothing is counted up to for them
-- sole, only  the number and the id of the holder, if it is alone and was not asked to end; else 0
local HEAD, HEAD_SIZE = '>BBBBI4I5I8I8I8I8I8I8I8I8I8c16', 101
local NO_CLAIM = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'

-- till, lease, fence, turn, handed, sent, since, seq, weight, marks, behind. What is not there is 0.
-- turn    when the turn that it was told of passes on
-- handed  when it was handed what it holds, while it has not said that it knows
-- sent    when its last request left, by its own clock, if it hears of its turn; negative if that must not be handed
--         to it
-- marks   1 = it could not be notified of its turn, and is passed over until it asks again; 2 = it was asked to end
local ENTRY, ENTRY_SIZE = '>I8I8I8I8I8i8I8I8I4BI4', 73
-- What follows in the same field: id, mailbox, kind, value, label; then by and why, if it was asked to end.
-- mailbox  the channel on which its client listens
-- value    empty if there is none, else '=' and the text
local BODY, ENDING = '>c16I2c0Bc0I4c0I4c0', '>I4c0I4c0'

-- A name that is taken again within this time, so many times, stays in the index while it is free: to list it costs
-- less then than to tell the index each time. In the index it stays for longer than its claims, for the same reason.
local AGAIN, OFTEN, LONGER = 1000000, 16, 10000000
-- The index outlives the longest lease.
local DAY, INDEX_MS = 86400000000, 2764800000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local version, quiet, left, streak, holders, cap, last_fence, ends, last, soon, listed, count, head, tail, sole, only =
  VERSION, 0, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, nil

local is_ours, has_numbers = true, true
local stored = redis.pcall('HGET', key, 'state')
if not stored then
  is_ours = redis.call('EXISTS', key) == 0
elseif #stored == HEAD_SIZE then
  version, quiet, left, streak, holders, cap, last_fence, ends, last, soon, listed, count, head, tail, sole, only =
    struct.unpack(HEAD, stored)
  is_ours, cap = version == VERSION, cap - 1
  if sole == 0 then only = nil end
  -- What these scripts have not written must not be counted to, nor granted.
  has_numbers = last_fence <= FENCES and ends <= FENCES and last <= FENCES and soon <= FENCES and listed <= FENCES
    and cap <= 4294967295 and tail <= NUMBERS and head <= tail and count <= tail - head and sole <= tail
    and holders <= tail and (sole == 0 or holders == 1)
else
  -- An error, too: that is a table, which has no length.
  is_ours = false
end

if not is_ours then
  local format = redis.pcall('HGET', key, 'format')
  if type(format) == 'table' then
    if string.find(format.err, 'WRONGTYPE', 1, true) then return { 'foreign', 'a value of another type' } end
    return format
  end
  if not format then return { 'foreign', 'a hash of another program' } end
  if not string.find(format, '^%d+$') then return { 'foreign', 'a format that is no number' } end
  if format == FORMAT then return { 'foreign', 'a state that cannot be read' } end
  return { tonumber(format) < VERSION and 'older' or 'newer', format }
end
if not has_numbers then return { 'foreign', 'numbers that no version of Oarlock writes, in the field state' } end

