-- Shows a resource, and changes nothing.
--
-- KEYS    see load.lua
-- answer  'shown', capacity or -1, last fence, memo or nil, and for each live claim in order:
--         { id, kind, weight, fence or -1, age, lease left, behind, label, value or nil, by or nil, why or nil }

local answer = { 'shown', cap, last_fence, left == 1 and redis.call('HGET', key, 'memo') }
for _, e in ipairs(entries) do
  if ends_at(e) > now then
    local by, why = ending(e)
    answer[#answer + 1] = {
      e.id, e.kind, e.weight, e.fence or -1, now - (e.handed or e.since), e.till - now, e.behind,
      e.label, text_of(e.value), by, why,
    }
  end
end
return answer
