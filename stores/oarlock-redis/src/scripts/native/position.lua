-- The position of the claim that asks, found by its number. However many wait, one of them is read.

-- What lasts longer than its lease was written before the clock was set back: then all must be looked at.
local function is_timely(till, lease) return till <= now + lease end

-- Where it waits, and has neither been told of its turn nor asked to end; nil where all must be looked at.
local function position_of(id, number)
  if not number or #number > 14 then return end
  local found = redis.call('HMGET', key, 'w' .. number, 'w' .. sole)
  local waits, holds = found[1], found[2]
  if not waits or #waits < ENTRY_SIZE + 16 then return end
  local till, lease, fence, turn, _, _, since, seq, weight, marks, _, owner = struct.unpack(ENTRY .. 'c16', waits)
  if owner ~= id or fence ~= 0 or turn ~= 0 or marks ~= 0 then return end
  if not (is_timely(till, lease) and seq > head and seq <= tail) then return end
  if sole > 0 and not (holds and #holds >= ENTRY_SIZE and is_timely(struct.unpack('>I8I8', holds))) then return end
  return { waits = waits, seq = seq, since = since, weight = weight, holds = holds }
end

-- Keeps it for as long as a position lasts. When the first of all runs out may now be later than is stored: then they
-- are looked at once in vain, which is less than to look at them each time.
local function stay(position, behind, lease, sent)
  local till, field = now + lease, 'w' .. position.seq
  local waits = struct.pack(ENTRY, till, lease, 0, 0, 0, sent, position.since, position.seq, position.weight, 0, behind)
    .. string.sub(position.waits, ENTRY_SIZE + 1)
  if till >= soon and till <= last then
    redis.call('HSET', key, field, waits)
  else
    soon, last = math.min(soon, till), math.max(last, till)
    enlist()
    keep(field, waits)
  end
end

