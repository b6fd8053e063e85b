-- The server's time, in microseconds. KEYS: one of the server's.
local now = redis.call('TIME')
return string.format('%.0f', now[1] * 1000000 + now[2])
