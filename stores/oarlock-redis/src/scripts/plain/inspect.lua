-- Shows a lock, and changes nothing.
--
-- KEYS    see load.lua
-- answer  as for the native layout; a holder of another program is known by its token alone

local answer = { 'shown', -1, last_fence, memo }
if token then
  local kind, label, value, held = 'mutex', '', false, 0
  local by, why = broken(token)
  if own > 0 then
    local more = call('HMGET', side, 'who', 'value')
    local _, its_kind, its_label = string.match(more[1] or '', '^(%S*) (%S*) (.*)$')
    kind, label = its_kind or kind, its_label or label
    if more[2] and string.sub(more[2], 1, #token) == token then value = string.sub(more[2], #token + 1) end
    local time = call('TIME')
    held = time[1] * 1000000 + time[2] - tonumber(held_since)
  end
  answer[#answer + 1] = {
    id_of(token), kind, 0, own > 0 and own or -1, math.max(held, 0), math.max(left(), 0), 0, label, value, by, why,
  }
end
return answer
