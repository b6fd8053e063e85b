
-- The long way: the two scripts, one after the other. Its header is in joint.short.lua.

local released = release({ ARGV[1] })
local done, answer = pcall(attempt, { ARGV[2] })
return { released, done and answer }
