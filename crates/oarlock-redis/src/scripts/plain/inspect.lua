-- Shows a lock, and changes nothing.
--
-- KEYS, ARGV[1]  see load.lua
-- answer         as for the native layout; a holder of another program is known by its token alone

local answer = { 'shown', -1, 0, last_fence, memo }
if token then
  local more = { false, false, false, false }
  local fence, by, why = -1, broken(token)
  if stored[2] == token then
    more = redis.call('HMGET', side, 'kind', 'since', 'label', 'value')
    fence = tonumber(stored[3] or 0) or -1
  end
  answer[6] = {
    id_of(token), more[1] or 'mutex', 0, fence, more[2] and now - tonumber(more[2]) or 0, math.max(left(), 0), 0,
    more[3] or '', more[4], by, why,
  }
end
return answer
