-- Takes, keeps or refuses a place. The same id takes one place, and keeps its fence.
--
-- KEYS, ARGV[1]  see load.lua
-- ARGV[2..]      id, session, kind, weight, wait (0 or 1), behind, lease, lease of a place,
--                what is said of the capacity ('any', 'fixed' or 'adopt'), capacity, label,
--                value ('' = none, else '=' and the value), a fence that only plain locks heed,
--                sent: see load.lua
-- answer         'granted', fence, lease, memo or nil | 'pending', ahead, microseconds until to look again or -1
--                | 'mismatch', stored capacity | 'heavy', capacity | 'upgrade' | 'exhausted'
--
-- The short way, for a resource without holders and waiters.

local id, kind, label, value = ARGV[2], ARGV[4], ARGV[12], ARGV[13]
local weight, wait, behind, sent = tonumber(ARGV[5]), ARGV[6] == '1', ARGV[7], tonumber(ARGV[15])
local ttl, waiter_ttl = tonumber(ARGV[8]), tonumber(ARGV[9])
local said, asked = ARGV[10], tonumber(ARGV[11])
local limit = said == 'any' and 1 or asked
local fence = math.max(last_fence + 1, now)

-- The claim, as it is stored when it arrives.
local function arriving(seq, lease, fence, sent)
  return struct.pack(
    ENTRY, now + lease, lease, fence, 0, 0, sent, weight, 0, behind, seq, now, id, ARGV[3], #kind, kind, #value,
    value, 0, '', 0, ''
  )
end

-- The label of a claim, which also says where its place is.
local function labelled(seq) return seq .. ' ' .. label end

if holders == 0 and count == 0 and (weight == 0 or limit == 0 or weight <= limit) and fence < FENCES then
  last_fence, soon, last, holders, only, tail = fence, now + ttl, math.ceil((now + ttl) / 1000), 1, id, 1
  cap = said == 'any' and -1 or asked
  enlist(keep(arriving(1, ttl, fence, 0), id, labelled(1)))
  redis.call(PUBLISH, key, '')
  return { 'granted', fence, ttl, memo }
end

