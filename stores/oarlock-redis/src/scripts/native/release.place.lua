-- The next short way, for a waiter that gives up while another holds everything: nothing changes for the others.

if how == 'withdrawn' and holders == 1 and soon > now then
  local _, _, _, _, handed, _, weight = struct.unpack('>ddddddI4', packed, HEAD_SIZE + 1)
  local place = weight == 0 and place_of(id)
  if place then
    count = count - 1
    -- Numbers at the ends are free again; those in between are when all are looked at.
    if place.seq == head + 1 then
      head = place.seq
    elseif place.seq == tail then
      tail = tail - 1
    end
    redis.call('HDEL', key, id, 'w' .. place.seq)
    keep(string.sub(packed, HEAD_SIZE + 1))
    redis.call(PUBLISH, key, '')
    return { 'released', (count > 0 or handed ~= 0) and 1 or 0 }
  end
end

