-- The place of the claim that asks, found by its number. However many wait, one of them is read.

-- What lasts longer than its lease was written before the clock was set back: then all must be looked at.
local function is_timely(till, lease) return till <= now + lease end

-- Where it waits, and has neither been told of its turn nor asked to end; nil where all must be looked at.
local function place_of(id)
  local number = known and string.match(known, '^(%d+) ')
  local waits = number and redis.call('HGET', key, 'w' .. number)
  if not waits then return end
  local read, till, lease, _, turn, _, _, _, deaf, _, seq, _, owner, _, _, _, by = pcall(struct.unpack, ENTRY, waits)
  if not read or owner ~= id or turn ~= 0 or deaf == 1 or by ~= '' then return end
  if not (is_timely(till, lease) and seq > head and seq <= tail) then return end
  if holders > 0 and not is_timely(struct.unpack('>dd', packed, HEAD_SIZE + 1)) then return end
  return { waits = waits, seq = seq }
end

-- Keeps it for as long as a place lasts. When the first of all runs out may now be later than is stored: then they are
-- looked at once in vain, which is less than to look at them each time.
local function stay(place, behind, lease, sent)
  local till, field = now + lease, 'w' .. place.seq
  local waits = struct.pack('>dddddd', till, lease, 0, 0, 0, sent)
    .. string.sub(place.waits, 49, 53) .. struct.pack('>I4', behind) .. string.sub(place.waits, 58)
  if till >= soon and till <= last * 1000 then
    redis.call('HSET', key, field, waits)
  else
    soon, last = math.min(soon, till), math.max(last, math.ceil(till / 1000))
    enlist(keep(string.sub(packed, HEAD_SIZE + 1), field, waits))
  end
end

