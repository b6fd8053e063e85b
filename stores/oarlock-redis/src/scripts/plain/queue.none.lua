-- In place of queue.next.lua where no claim waits in a queue.

local function wake_next() end

