-- Shows a lock, and changes nothing.
--
-- KEYS, ARGV[1]  see load.lua
-- answer         as for the native layout; a holder of another program is known by its token alone

local answer = { 'shown', -1, 0, last_fence, memo }
if token then
  local more = { false, false, false, false }
  local fence, held, by, why = -1, 0, broken(token)
  if stored[2] == token then
    more = call('HMGET', side, 'kind', 'since', 'label', 'value')
    fence = tonumber(stored[3] or 0) or -1
    local time = call('TIME')
    held = time[1] * 1000000 + time[2] - tonumber(more[2])
  end
  answer[6] = {
    id_of(token), more[1] or 'mutex', 0, fence, math.max(held, 0), math.max(left(), 0), 0,
    more[3] or '', more[4] and more[4] ~= '' and string.sub(more[4], 2), by, why,
  }
end
return answer
