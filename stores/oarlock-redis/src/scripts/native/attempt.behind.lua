-- The next short way, for a claim that wants everything while another is in its way and no claim has expired: it goes
-- to the end. What it is told is one number, because a list costs the server more: how many are ahead, and the
-- milliseconds until to look again.

-- Where no claim holds, the first in line is in the way of all others once it was told of its turn. A crowd that
-- arrives before it takes that turn must not be read by each of its claims.
local has_turn = false
if not answer and wait and weight == 0 and holders == 0 and count > 0 then
  local first = redis.call('HGET', key, 'w' .. head + 1)
  if first and #first >= ENTRY_SIZE then
    local _, _, _, turn, _, _, _, seq = struct.unpack(ENTRY, first)
    has_turn = turn > now and turn <= now + TURN and seq == head + 1
  end
end

local is_busy = not answer and wait and soon > now and (holders > 0 and only ~= id or has_turn)
local known = is_busy and redis.call('HGET', key, id)

if is_busy and weight == 0 and said == ANY and not known and count < 1000000 then
  answer = -1 - (holders + count) * 4294967296 - math.ceil((soon - now) / 1000)
  local till = now + waiter_ttl
  if count == 0 and only then head = tail end
  tail, count = tail + 1, count + 1
  if till < soon then soon = till end
  if till > last then last = till end
  field, number = 'w' .. tail, tail
  entry = struct.pack(ENTRY, till, waiter_ttl, 0, 0, 0, sent, now, tail, 0, 0, behind)
    .. string.sub(ARGV[1], REQUEST_SIZE + 1)
end

