-- Takes, keeps or refuses a place. The same id takes one place, and keeps its fence.
--
-- KEYS, ARGV[1]  see load.lua
-- ARGV[2..]      id, session, kind, weight, fair (0 or 1), wait (0 or 1), behind, lease, lease of a place,
--                what is said of the capacity ('any', 'fixed' or 'adopt'), capacity, label,
--                value ('' = none, else '=' and the value), a fence that only plain locks heed,
--                sent: when this request left, by the client's own clock; 0 if its turn must not be handed to it
-- answer         'granted', fence, lease, memo or nil | 'pending', ahead, microseconds until to look again or -1
--                | 'mismatch', stored capacity | 'heavy', capacity | 'upgrade' | 'exhausted'
--
-- The short way, for a resource that nobody holds or waits for.

local id, session, kind = ARGV[2], ARGV[3], ARGV[4]
local weight, fair, wait, behind = tonumber(ARGV[5]), ARGV[6] == '1', ARGV[7] == '1', tonumber(ARGV[8])
local ttl, place_ttl = tonumber(ARGV[9]), tonumber(ARGV[10])
local said, asked, label, value, sent = ARGV[11], tonumber(ARGV[12]), ARGV[13], ARGV[14], ARGV[16]
local limit = said == 'any' and 1 or asked
local fence = math.max(last_fence + 1, now)

if not stored[3] and (weight == 0 or limit == 0 or weight <= limit) and fence < FENCES then
  local last_ms = math.ceil((now + ttl) / 1000)
  local me = {
    id = id, session = session, kind = kind, weight = weight, fair = fair, behind = behind,
    since = now, till = now + ttl, lease = ttl, fence = fence, seq = 1,
  }
  if value ~= '' then me.value = string.sub(value, 2) end
  local packed = cmsgpack.pack({ cap = said ~= 'any' and asked or nil, entries = { me }, last = last_ms, tail = 1 })
  local ends_ms = ends(last_ms)
  if ends_ms then
    redis.call('HSET', key, 'format', FORMAT, 'fence', fence, 'state', packed, id, label, 'ends', ends_ms)
    redis.call('PEXPIREAT', key, ends_ms)
  else
    redis.call('HSET', key, 'fence', fence, 'state', packed, id, label)
  end
  enlist(last_ms, ends_ms)
  redis.call(PUBLISH, key, '')
  return { 'granted', fence, ttl, memo }
end

