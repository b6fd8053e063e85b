-- Tells the first claim in the queue that its turn has come; those that no client listens for any more are passed over.

-- So many at once: others look from time to time.
local GONE = 100

local function wake_next()
  for _ = 1, GONE do
    local first = redis.pcall('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
    if not first[1] then return end
    local told = redis.pcall(PUBLISH, string.sub(first[1], 17), string.sub(first[1], 1, 16))
    -- Without the right to tell it, it stays where it is: its client looks from time to time.
    if type(told) ~= 'number' then return end
    redis.call('ZREM', KEYS[3], first[1])
    if told > 0 then
      local turn = struct.pack(TURN_HEAD, micros() + TURN, tonumber(first[2])) .. first[1]
      redis.pcall('HSET', KEYS[2], 'turn', turn)
      if redis.call('PTTL', KEYS[2]) == -1 then redis.call('PEXPIRE', KEYS[2], QUEUE_MS) end
      return
    end
  end
end

