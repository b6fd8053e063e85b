-- Ends a holder that leaves nothing. This goes before everything else, because it is what most releases are.
--
-- KEYS    see load.lua
-- ARGV    see release.lua
-- answer  1: it is released

if not ARGV[2] and redis.pcall('GET', KEYS[1]) == ARGV[1] then
  -- Who had it stays beside it for its day: to remove that too would double the cost of a release.
  redis.call('DEL', KEYS[1])
  wake_next()
  redis.call(PUBLISH, KEYS[2], 'free')
  return 1
end

