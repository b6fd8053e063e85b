-- Units have arrived. ARGV: transfer. A late request to send them again, within a day, finds that it is over.
local under_way, over = KEYS[4], KEYS[5]
if redis.call('HDEL', under_way, ARGV[1]) == 1 then
  local now = tonumber(redis.call('TIME')[1])
  redis.call('ZADD', over, now, ARGV[1])
  redis.call('ZREMRANGEBYSCORE', over, '-inf', now - 86400)
end
return 1
