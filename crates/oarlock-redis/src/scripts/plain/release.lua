-- Ends a holder.
--
-- KEYS, ARGV[1]  see load.lua
-- ARGV[2..]      id, how ('done', 'withdrawn' or 'broken');
--                done: memo ('' = none, else '=' and the bytes); broken: by, why, grace
-- answer         'released' | 'absent' | 'asked', and -1: nobody knows who waits

local id, how = ARGV[2], ARGV[3]

-- A holder of another program can only be broken, by the id that it is shown with.
if not token or (token ~= id and (how ~= 'broken' or id_of(token) ~= id)) then return { 'absent', -1 } end

if how == 'done' and ARGV[4] ~= '' then
  call('HSET', side, 'memo', string.sub(ARGV[4], 2))
  -- A day from now, also where all that was kept of it had been lost.
  if call('PTTL', side) < 86400000 then call('PEXPIRE', side, 86400000) end
end
if how == 'broken' then
  local grace_ms = math.floor(tonumber(ARGV[6]) / 1000)
  if call('HGET', side, 'id') == token then
    call('HSET', side, 'broken', token, 'by', ARGV[4], 'why', ARGV[5])
    local session = call('HGET', side, 'session')
    -- In a cluster a mailbox is not in the slot of the lock: there its holder learns it from its next renewal.
    if session and PUBLISH == 'PUBLISH' then call('PUBLISH', ARGV[1] .. session, token) end
  end
  if grace_ms > 0 then
    local ms = call('PTTL', key)
    if ms < 0 or ms > grace_ms then call('PEXPIRE', key, grace_ms) end
    return { 'asked', -1 }
  end
end
-- Who had it stays beside it for its day: to remove that too would double the cost of a release.
call('DEL', key)
call(PUBLISH, side, '')
return { 'released', -1 }
