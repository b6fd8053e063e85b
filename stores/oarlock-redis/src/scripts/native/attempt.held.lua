-- The next short way, for the only holder, which asks again: a waiter that was handed its turn while its request was on
-- the way, or a client whose answer was lost. However many wait, one of them is read.

if not answer and weight == 0 and only == id and soon > now then
  local holds = redis.call('HGET', key, 'w' .. sole)
  if holds and #holds >= ENTRY_SIZE then
    local till, lease, held, _, handed, _, since, seq, all, marks = struct.unpack(ENTRY, holds)
    local body = string.sub(holds, ENTRY_SIZE + 1)
    -- The same claim: nothing of it is stored anew but its lease.
    local is_same = all == 0 and marks == 0 and seq == sole and body == string.sub(ARGV[1], REQUEST_SIZE + 1)
    -- What lasts longer than its lease was written before the clock was set back: then all must be looked at.
    if is_same and held > 0 and held <= last_fence and till > now and till <= now + lease then
      till = now + ttl
      soon, last = count == 0 and till or math.min(soon, till), count == 0 and till or math.max(last, till)
      field, answer = 'w' .. sole, { 'granted', held, ttl, left == 1 and redis.call('HGET', key, 'memo') }
      entry = struct.pack(ENTRY, till, ttl, held, 0, 0, 0, handed ~= 0 and handed or since, seq, 0, 0, behind) .. body
    end
  end
end

