-- Keeps a holder alive.
--
-- KEYS       see load.lua
-- ARGV[1]    means nothing here
-- ARGV[2..]  id, behind, lease, lease of a position, what to do with the fences ('keep', 'least' or 'reserve'),
--            the least fence or how many, value, memo ('' = none, else '=' and the bytes), two that mean nothing
--            here, how long the memo must be remembered at least
-- answer     'alive', lease, largest fence, by and why if it was asked to end
--            | 'gone' and by, why if it was broken | 'exhausted'

local id, ttl_ms, how, number = ARGV[2], math.floor(ARGV[4] / 1000), ARGV[6], tonumber(ARGV[7])
local value, memo_left = ARGV[8], string.sub(ARGV[9], 2)
local FENCES = 9007199254740992
local by, why = broken(id)

-- Where the bytes of a memo stand among all that a quorum wrote: the fence of its writer, and its number.
local function order(bytes)
  if bytes and #bytes >= 25 and string.sub(bytes, 1, 9) == 'quorum/1 ' then return struct.unpack('>I8I8', bytes, 10) end
  return 0, 0
end

-- Whether this memo was written before the one that is there: a renewal that was held up comes after a later one.
local function is_late(bytes)
  local fence, count = order(bytes)
  local fence_there, count_there = order(memo)
  return fence > 0 and (fence < fence_there or (fence == fence_there and count < count_there))
end

if token ~= id then return { 'gone', by, why } end
-- What we kept of it was lost, and with it the fence that its holder was given.
if own == 0 then return { 'gone' } end

local fence = own
if how ~= 'keep' then
  local to = how == 'least' and number or last_fence + number
  if to >= FENCES then return { 'exhausted' } end
  if to > last_fence then
    last_fence = to
    call('HSET', side, 'fence', last_fence)
  end
  fence = math.max(last_fence, own)
  -- A reserved block belongs to the claim, but its own fence stays what its holder was given.
  if how == 'least' and fence > own then
    call('HSET', side, 'held', id .. ' ' .. string.format('%.0f', fence) .. ' ' .. held_since)
  end
end
if ARGV[9] ~= '' and not is_late(memo_left) then
  call('HSET', side, 'memo', memo_left)
  keep(math.ceil(ARGV[12] / 1000) - DAY_MS)
end
if value ~= '' then
  call('HSET', side, 'value', id .. string.sub(value, 2))
else
  call('HDEL', side, 'value')
end
if by then return { 'alive', math.max(left(), 0), fence, by, why } end
call('PEXPIRE', key, ttl_ms)
keep(ttl_ms)
return { 'alive', ttl_ms * 1000, fence }
