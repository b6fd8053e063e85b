-- The next short way, for whoever wants everything while somebody holds, and nobody has run out: it goes to the end.

local function behind_others()
  local soonest = state.soon or math.huge
  for _, e in ipairs(state.entries) do soonest = math.min(soonest, e.till) end
  if soonest <= now or redis.call('HGET', key, id) then return end

  local last_ms, seq, count = math.ceil((now + place_ttl) / 1000), state.tail + 1, state.count or 0
  local me = {
    id = id, session = session, kind = kind, weight = weight, fair = fair, behind = behind,
    since = now, till = now + place_ttl, lease = place_ttl, seq = seq, sent = sent ~= '0' and sent or nil,
  }
  if value ~= '' then me.value = string.sub(value, 2) end
  state.head, state.tail, state.count = state.head or seq - 1, seq, count + 1
  state.soon = math.min(state.soon or me.till, me.till)
  local ends_ms = ends(last_ms)
  local later = last_ms > state.last
  if later then state.last = last_ms end
  redis.call('HSET', key, 'state', cmsgpack.pack(state), 'w' .. seq, cmsgpack.pack(me), id, label)
  if ends_ms then
    redis.call('HSET', key, 'ends', ends_ms)
    redis.call('PEXPIREAT', key, ends_ms)
  end
  if later or ends_ms then enlist(last_ms, ends_ms) end
  redis.call(PUBLISH, key, '')
  return { 'pending', #state.entries + count, soonest - now }
end

if wait and weight == 0 and said == 'any' and state.entries[1] then
  local answer = behind_others()
  if answer then return answer end
end

