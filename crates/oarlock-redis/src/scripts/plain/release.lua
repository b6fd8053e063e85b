-- Ends a holder.
--
-- KEYS, ARGV[1]  see load.lua
-- ARGV[2..]      id, how ('done', 'withdrawn' or 'broken');
--                done: memo ('' = none, else '=' and the bytes); broken: by, why, grace
-- answer         'released' | 'absent' | 'asked', and -1: nobody knows who waits

local id, how = ARGV[2], ARGV[3]

-- A holder of another program can only be broken, by the id that it is shown with.
if not token or (token ~= id and (how ~= 'broken' or id_of(token) ~= id)) then return { 'absent', -1 } end

if how == 'done' and ARGV[4] ~= '' then redis.call('HSET', side, 'memo', string.sub(ARGV[4], 2)) end
if how == 'broken' then
  local grace_ms = math.floor(tonumber(ARGV[6]) / 1000)
  if stored[2] == token then
    redis.call('HSET', side, 'broken', token, 'by', ARGV[4], 'why', ARGV[5])
    local session = redis.call('HGET', side, 'session')
    -- In a cluster a mailbox is not in the slot of the lock: there its holder learns it from its next renewal.
    if session and PUBLISH == 'PUBLISH' then redis.call('PUBLISH', mail .. session, token) end
  end
  if grace_ms > 0 then
    local ms = redis.call('PTTL', key)
    if ms < 0 or ms > grace_ms then redis.call('PEXPIRE', key, grace_ms) end
    return { 'asked', -1 }
  end
end
redis.call('DEL', key)
redis.call('HDEL', side, 'id', 'own', 'session', 'kind', 'since', 'label', 'value')
if redis.call('EXISTS', side) == 1 then redis.call('PEXPIRE', side, KEEP_MS) end
redis.call(PUBLISH, side, '')
return { 'released', -1 }
