-- Ends a holder.
--
-- KEYS      see load.lua
-- ARGV[1]   id
-- ARGV[2..] how, unless it is simply done: 'memo' and the bytes that it leaves; 'withdrawn' and what the queue keeps of
--           it, see queue.lua, or '' if it did not wait there: no message says that the lock is free; 'broken', by,
--           why, grace in microseconds, and what goes before a session to name the channel of its mailbox
-- answer    'released' | 'absent' | 'asked', and -1: waiters are unknown | 'cannot ask'

local id, how = ARGV[1], ARGV[2]

-- A claim that waited leaves the queue, and passes its turn on.
if how == 'withdrawn' and ARGV[3] ~= '' then
  redis.pcall('ZREM', KEYS[3], ARGV[3])
  if turn_of(redis.pcall('HGET', side, 'turn')) == ARGV[3] then
    call('HSET', side, 'turn', '')
    if not token then wake_next() end
  end
end

-- A holder of another program can only be broken, by the id that it is shown with.
if not token or (token ~= id and (how ~= 'broken' or id_of(token) ~= id)) then return { 'absent', -1 } end

if how == 'memo' then
  call('HSET', side, 'memo', ARGV[3])
  -- A day from now, also where all that was kept of it had been lost.
  if call('PTTL', side) < 86400000 then call('PEXPIRE', side, 86400000) end
end
if how == 'broken' then
  local grace_ms = math.floor(tonumber(ARGV[5]) / 1000)
  local kept = call('HMGET', side, 'held', 'who')
  local is_ours = string.match(kept[1] or '', '^%S+') == token
  -- Other programs cannot be asked: a program that extends its lock would keep it.
  if grace_ms > 0 and not is_ours then return { 'cannot ask' } end
  if is_ours then
    call('HSET', side, 'broken', token, 'by', ARGV[3], 'why', ARGV[4])
    local session = string.match(kept[2] or '', '^%S+')
    -- In a cluster a mailbox is not in the slot of the lock: there its holder learns it from its next renewal.
    if session and PUBLISH == 'PUBLISH' then call('PUBLISH', ARGV[6] .. session, token) end
  end
  if grace_ms > 0 then
    local ms = call('PTTL', key)
    if ms < 0 or ms > grace_ms then call('PEXPIRE', key, grace_ms) end
    return { 'asked', -1 }
  end
end
call('DEL', key)
wake_next()
if how == 'withdrawn' then call(PUBLISH, side .. ':changes', '') else call(PUBLISH, side, 'free') end
return { 'released', -1 }
