-- The next short way, for a waiter that gives up while another holds everything: nothing changes for the others.

if how == WITHDRAWN and only and only ~= id and soon > now then
  local position = position_of(id, redis.call('HGET', key, id))
  local _, handed, weight
  if position then _, _, _, _, handed, _, _, _, weight = struct.unpack(ENTRY, position.holds) end
  if weight == 0 then
    count = count - 1
    -- Numbers at the ends are free again; those in between are when all are looked at.
    if position.seq == head + 1 then
      head = position.seq
    elseif position.seq == tail then
      tail = tail - 1
    end
    redis.call('HDEL', key, id, 'w' .. position.seq)
    changes()
    keep()
    return (count > 0 or handed ~= 0) and 3 or 2
  end
end

