-- Takes, keeps or refuses a position. The same id takes one position, and keeps its fence.
--
-- KEYS     see load.lua
-- ARGV[1]  wait (0 or 1), what is said of the capacity (see ANY), weight, capacity, behind, lease, lease of a position,
--          sent; then what is stored of the claim: see BODY in load.lua
-- answer   the fence, of a whole lease without a memo | 'granted', fence, lease, memo or nil
--          | a negative number: see attempt.behind.lua | 'pending', ahead, microseconds until to look again or -1
--          | 'mismatch', stored capacity | 'heavy', capacity | 'upgrade' | 'exhausted'
--
-- The short way, for a resource without holders and waiters.

local REQUEST, REQUEST_SIZE = '>BBI4I4I4I8I8i8c16', 38
local ANY, FIXED = 0, 1

local wait, said, weight, asked, behind, ttl, waiter_ttl, sent, id = struct.unpack(REQUEST, ARGV[1])
wait = wait == 1
local limit = said == ANY and 1 or asked
local fence = now > last_fence and now or last_fence + 1

-- What a short way has decided: see store.lua.
local answer, field, entry, number
local write = redis.call

if holders == 0 and count == 0 and (weight == 0 or limit == 0 or weight <= limit) and fence < FENCES then
  if now - soon >= AGAIN then
    streak = 0
  elseif streak < OFTEN then
    streak = streak + 1
  end
  local till = now + ttl
  last_fence, soon, last, holders, head, tail, sole, only = fence, till, till, 1, 1, 1, 1, id
  cap = said == ANY and -1 or asked
  field = 'w1'
  entry = struct.pack(ENTRY, till, ttl, fence, 0, 0, 0, now, 1, weight, 0, behind)
    .. string.sub(ARGV[1], REQUEST_SIZE + 1)
  answer = left == 0 and fence or { 'granted', fence, ttl, redis.call('HGET', key, 'memo') }
end

