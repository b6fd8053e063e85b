-- Refuses a lock that is taken, or keeps it for its holder. The same id takes it once, and keeps its fence.
--
-- KEYS, ARGV  see attempt.free.lua
-- answer      'granted', fence, lease, memo or nil | 'exhausted'
--             | 'pending', -1, microseconds until to look again or -1, whose it is, and if the claim is in the
--               queue 1, or 0 if the holder is of another program, which will notify no claim

if token ~= id then
  local is_queued = joins and enqueue()
  if not token then return { 'pending', -1, turn_left, false, is_queued and 1 or nil } end
  if not is_queued then return { 'pending', -1, left(), id_of(token) } end
  return { 'pending', -1, left(), id_of(token), own > 0 and 1 or 0 }
end

-- Asked to end, it is not extended by asking again.
if own > 0 and broken(id) then return { 'granted', own, math.max(left(), 0), memo } end

call('PEXPIRE', key, ttl_ms)
-- What we kept of it was lost, and with it the fence that its holder was given.
if own == 0 then return give() end
keep(ttl_ms)
return { 'granted', own, ttl_ms * 1000, memo }
