-- The long way of a release. Its header is in release.alone.lua.

expire()
local at, me = find(id)
if not me then return finish({ 'absent', anyone_waits() }) end

dirty = true
if me.fence and left ~= '' then
  fields[#fields + 1] = 'memo'
  memo = string.sub(left, 2)
  fields[#fields + 1] = memo
end
if how == 'broken' then
  calls[#calls + 1] = me
  touched[me] = true
  take(me)
  me.by, me.why = '=' .. ARGV[4], '=' .. ARGV[5]
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
