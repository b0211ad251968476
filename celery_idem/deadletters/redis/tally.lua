-- Letters by error group in one stretch of a filter (as find.lua, which see).
-- KEYS[1]  what all keys begin with
-- ARGV     1 lowest position  2 highest position, both included  3 most to look at
--          4 text, lower case, or empty  5… names of indexes that a letter must be in
-- Returns  per group: name, count, first position, last position, id of the last; then the
--          position to go on with, or "" at the end
local base, low, high = KEYS[1], ARGV[1], ARGV[2]
local budget, text = tonumber(ARGV[3]), ARGV[4]
local driver, least = base .. 'all', redis.call('ZCARD', base .. 'all')
for i = 5, #ARGV do
  local size = redis.call('ZCARD', base .. ARGV[i])
  if size <= least then driver, least = base .. ARGV[i], size end
end
local asked = {}
for i = 5, #ARGV do
  if base .. ARGV[i] ~= driver then asked[#asked + 1] = base .. ARGV[i] end
end
local names, counts, first, last, example, beyond = {}, {}, {}, {}, {}, ''
while budget > 0 do
  local some = redis.call('ZRANGEBYSCORE', driver, low, high, 'WITHSCORES', 'LIMIT', 0, 500)
  if #some == 0 then beyond = '' break end
  for i = 1, #some, 2 do
    local id, fits = some[i], true
    for _, index in ipairs(asked) do
      if not redis.call('ZSCORE', index, id) then fits = false break end
    end
    local r = fits and redis.call('HMGET', base .. 'l:' .. id, 'gr', text ~= '' and 'tx' or 'gr')
    if fits and text ~= '' then fits = r[2] and string.find(r[2], text, 1, true) end
    beyond = string.format('%.0f', tonumber(some[i + 1]))
    if fits and r[1] then
      local name = r[1]
      if not counts[name] then
        names[#names + 1], counts[name], first[name] = name, 0, beyond
      end
      counts[name], last[name], example[name] = counts[name] + 1, beyond, id
    end
  end
  low = '(' .. beyond
  budget = budget - 500
end
local out = {}
for _, name in ipairs(names) do
  out[#out + 1] = {name, counts[name], first[name], last[name], example[name]}
end
return {out, beyond}
