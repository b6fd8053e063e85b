-- Shows a resource, and changes nothing.
--
-- KEYS, ARGV[1]  see load.lua
-- answer         'shown', capacity or -1, last fence, memo or nil, and for each live claim in order:
--                { id, kind, weight, fence or -1, age, lease left, behind, label, value or nil, by or nil, why or nil }

local labels, ids = {}, {}
for at, e in ipairs(entries) do ids[at] = e.id end
for from = 1, #ids, MANY do
  for _, label in ipairs(redis.call('HMGET', key, unpack(ids, from, math.min(from + MANY - 1, #ids)))) do
    labels[#labels + 1] = label and string.gsub(label, '^%d+ ', '', 1)
  end
end

local answer = { 'shown', cap, last_fence, memo }
for at, e in ipairs(entries) do
  if ends_at(e) > now then
    local by, why = ending(e)
    answer[#answer + 1] = {
      e.id, e.kind, e.weight, e.fence or -1, now - (e.handed or e.since), e.till - now, e.behind,
      labels[at], text_of(e.value), by, why,
    }
  end
end
return answer
