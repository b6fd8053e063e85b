-- Shows a resource, and changes nothing.
--
-- KEYS, ARGV[1]  see load.lua
-- answer         'shown', capacity or -1, fair (0 or 1), last fence, memo or nil, and for each live claim in order:
--                { id, kind, weight, fence or -1, age, lease left, behind, label, value or nil, by or nil, why or nil }

local function label_of(e)
  local label = redis.call('HGET', key, e.id)
  return label and string.gsub(label, '^%d+ ', '', 1) or false
end

local answer = { 'shown', cap, is_fair() and 1 or 0, last_fence, memo }
for _, e in ipairs(entries) do
  if ends_at(e) > now then
    local by, why = ending(e)
    answer[#answer + 1] = {
      e.id, e.kind, e.weight, e.fence or -1, now - (e.handed or e.since), e.till - now, e.behind,
      label_of(e), text_of(e.value), by, why,
    }
  end
end
return answer
