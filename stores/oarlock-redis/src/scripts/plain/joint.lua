
-- Puts a claim into the queue, and then ends the holder before it. The claim does not take the lock in the same step:
-- other programs find it free for a moment, as after any release.
--
-- KEYS     see load.lua
-- ARGV[1]  id of the holder
-- ARGV[2]  '=' and the memo that it leaves, or ''
-- ARGV[3]  what the queue keeps of the claim, see queue.lua
-- answer   that of the release, that of the attempt: see release.lua and attempt.lua; nil instead of the latter if it
--          is not in the queue: it has to be sent again

local queued = redis.pcall('ZADD', KEYS[3], 'NX', micros(), ARGV[3])
local is_queued = type(queued) == 'number'
if is_queued then redis.call('PEXPIRE', KEYS[3], QUEUE_MS) end
local leaves = ARGV[2] ~= ''
local released = release({ ARGV[1], leaves and 'memo' or nil, leaves and string.sub(ARGV[2], 2) or nil })
-- If the hold had ended before, another program may have the lock.
return { released, is_queued and { 'pending', -1, -1, false, released == 1 and 1 or 0 } }
