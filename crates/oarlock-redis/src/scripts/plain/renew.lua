-- Keeps a holder alive.
--
-- KEYS, ARGV[1]  see load.lua
-- ARGV[2..]      id, behind, lease, lease of a place, what to do with the fences ('keep', 'least' or 'reserve'),
--                the least fence or how many, value, memo ('' = none, else '=' and the bytes)
-- answer         'alive', lease, largest fence, by and why if somebody asked for its end
--                | 'gone' and by, why if it was broken | 'exhausted'

local id, ttl, how, number, value, memo_left = ARGV[2], tonumber(ARGV[4]), ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9]
local FENCES, KEEP_MS, MORE_MS = 9007199254740992, 86400000, 3600000
local by, why = broken(id)

if token ~= id then return { 'gone', by, why } end

local fence = stored[2] == id and tonumber(stored[3] or 0) or 0
if fence == 0 then
  -- What we kept of it was lost, and with it the fence that its holder was given.
  return { 'gone' }
end
if how ~= 'keep' then
  local to = how == 'least' and number or last_fence + number
  if to >= FENCES then return { 'exhausted' } end
  last_fence = math.max(last_fence, to)
  call('HSET', side, 'fence', last_fence)
  -- A reserved block belongs to the claim, but its own fence stays what its holder was given.
  if how == 'least' then call('HSET', side, 'own', math.max(last_fence, fence)) end
  fence = math.max(last_fence, fence)
end
if memo_left ~= '' then call('HSET', side, 'memo', string.sub(memo_left, 2)) end
if value ~= '' then
  call('HSET', side, 'value', value)
else
  call('HDEL', side, 'value')
end
if by then return { 'alive', math.max(left(), 0), fence, by, why } end
local ttl_ms = math.floor(ttl / 1000)
call('PEXPIRE', key, ttl_ms)
if call('PTTL', side) < ttl_ms + KEEP_MS then call('PEXPIRE', side, ttl_ms + KEEP_MS + MORE_MS) end
return { 'alive', ttl_ms * 1000, fence }
