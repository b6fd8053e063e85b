-- Takes or refuses a lock. The same id takes it once, and keeps its fence.
--
-- KEYS, ARGV[1]  see load.lua
-- ARGV[2..]      as for the native layout; weight, order, waiting and capacity mean nothing here
-- answer         'granted', fence, lease, memo or nil | 'pending', -1, microseconds until to look again or -1 | 'exhausted'

local id, session, kind, ttl, label, value = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[9]), ARGV[13], ARGV[14]
local ttl_ms = math.floor(ttl / 1000)

if token and token ~= id then return { 'pending', -1, left() } end

local own = tonumber(stored[3] or 0) or 0
if token and stored[2] == id and own > 0 then
  -- Asked to end, it is not extended by asking again.
  if broken(id) then return { 'granted', own, math.max(left(), 0), memo } end
  redis.call('PEXPIRE', key, ttl_ms)
  keep(ttl)
  return { 'granted', own, ttl_ms * 1000, memo }
end

local fence = math.max(last_fence + 1, now)
if fence >= FENCES then return { 'exhausted' } end
redis.call('SET', key, id, 'PX', ttl_ms)
redis.call('HDEL', side, 'value')
redis.call(
  'HSET', side, 'fence', fence, 'id', id, 'own', fence, 'session', session, 'kind', kind, 'since', now, 'label', label
)
if value ~= '' then redis.call('HSET', side, 'value', string.sub(value, 2)) end
keep(ttl)
redis.call(PUBLISH, side, '')
return { 'granted', fence, ttl_ms * 1000, memo }
