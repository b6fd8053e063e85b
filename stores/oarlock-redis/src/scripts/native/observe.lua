-- Notes that a client listens to the channel of a resource, so that changes are told there. Where nothing is stored
-- yet, they are.
--
-- KEYS    see load.lua
-- answer  1

if quiet == 1 then
  quiet = 0
  -- A full server lets those pass that come after a write that needs no memory.
  redis.call('HDEL', key, '')
  keep()
end
return 1
