-- The long way of a release. Its header is in release.alone.lua.

local function leave_memo()
  if leaves then
    left = 1
    fields[#fields + 1] = 'memo'
    fields[#fields + 1] = string.sub(ARGV[1], 19)
  end
end

if is_removed then
  after_removal()
  return finish({ 'released', anyone_waits() })
end

expire()
local at, me = find(id)
if not me then return finish({ 'absent', anyone_waits() }) end

dirty = true
if me.fence then leave_memo() end
if how == BROKEN then
  local by, why, grace = struct.unpack('>I4c0I4c0I8', ARGV[1], 18)
  to_notify[#to_notify + 1] = me
  touched[me] = true
  take(me)
  me.by, me.why = by, why
  if grace > 0 then
    changed = true
    me.till = math.min(me.till, now + grace)
    return finish({ 'asked', anyone_waits() })
  end
  keep_ending(me)
end
remove(at)
return finish({ 'released', anyone_waits() })
