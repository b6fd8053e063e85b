-- Ends a claim, holder or waiter.
--
-- KEYS, ARGV[1]  see rule.lua
-- ARGV[2..]      id, how ('done', 'withdrawn' or 'broken');
--                done: memo ('' = none, else '=' and the bytes); broken: by, why, grace
-- answer         'released' | 'absent' | 'asked', and 1 if somebody waits, else 0

local id, how = ARGV[2], ARGV[3]

expire()
local at, me = find(id)
if not me then return finish({ 'absent', anyone_waits() }) end

dirty = true
if how == 'done' and me.fence and ARGV[4] ~= '' then fields = { 'memo', string.sub(ARGV[4], 2) } end
if how == 'broken' then
  calls[#calls + 1] = me
  me.by, me.why = ARGV[4], ARGV[5]
  local grace = tonumber(ARGV[6])
  if grace > 0 then
    changed = true
    me.till = math.min(me.till, now + grace)
    return finish({ 'asked', anyone_waits() })
  end
  bury(me)
end
remove(at)
return finish({ 'released', anyone_waits() })
