-- Units have arrived. ARGV: transfer. A late request to send them again finds that it is over.
local under_way, over = KEYS[4], KEYS[5]
if redis.call('HDEL', under_way, ARGV[1]) == 1 then
  redis.call('ZADD', over, redis.call('TIME')[1], ARGV[1])
end
return 1
