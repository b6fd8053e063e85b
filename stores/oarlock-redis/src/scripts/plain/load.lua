-- Reads a lock that other programs take too: a string key whose value is the holder's token. It goes before each of
-- the other scripts of this layout, after a line that says how to publish. 'free' is published beside the lock, on
-- the channel of KEYS[2], when it is given back. Other changes have a channel of their own (':changes'), so that they
-- wake no waiter.
--
-- KEYS[1]  the lock: a string, the token of its holder, which ends with the lease
-- KEYS[2]  what only we keep of it, a hash in the same slot:
--            fence   the largest fence given or reserved so far
--            held    the claim of ours that had the lock last: its id, its fence and since when. A lock with another
--                    token, or none, is not that claim's
--            who     session, kind and label of that claim
--            value   what it published: its id and the text. That of another id has ended
--            broken  the claim of ours that was asked to end last, by whom ('by') and why ('why')
--            memo    the bytes that a holder left
--            turn    the claim of ours that was notified that the lock is free: see queue.lua. Empty or absent if there
--                    is none
--            kept    until when it is kept, in milliseconds
--            quiet   there if no client listens to other changes: an observer that comes removes it
-- KEYS[3]  the queue, see queue.lua; not for all scripts
-- answer   'foreign', why: the key is not a lock of this kind, and is left as it is
--
-- Times are in microseconds; the lock itself is kept to the millisecond.

local call = redis.call
local key, side = KEYS[1], KEYS[2]

local token = redis.pcall('GET', key)
if type(token) == 'table' then
  if string.find(token.err, 'WRONGTYPE', 1, true) then
    return { 'foreign', 'a value of another type: another kind of lock?' }
  end
  return token
end

-- Microseconds until the lock ends by itself; -1 if it does not.
local function left()
  local ms = call('PTTL', key)
  return ms < 0 and -1 or ms * 1000
end

-- The token that another program gave itself, in the form of our ids.
local function id_of(theirs)
  if string.find(theirs, '^%x+$') and #theirs == 32 then return string.lower(theirs) end
  return string.sub(redis.sha1hex(theirs), 1, 32)
end

