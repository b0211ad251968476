-- One stretch of the letters of a filter: the smallest index drives, the others are asked.
-- KEYS[1]  what all keys begin with
-- ARGV     1 "new" (newest first) or "old"  2 lowest position  3 highest position, both included
--          4 letters wanted  5 most to look at  6 text, lower case, or empty
--          7… names of indexes that a letter must be in ("task:…", "lane:…", …)
-- Returns  ids found, as a list; position to go on with, or "" at the end
local base, newest = KEYS[1], ARGV[1] == 'new'
local low, high = ARGV[2], ARGV[3]
local wanted, budget, text = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local driver, least = base .. 'all', redis.call('ZCARD', base .. 'all')
for i = 7, #ARGV do
  local size = redis.call('ZCARD', base .. ARGV[i])
  if size <= least then driver, least = base .. ARGV[i], size end
end
local asked = {}
for i = 7, #ARGV do
  if base .. ARGV[i] ~= driver then asked[#asked + 1] = base .. ARGV[i] end
end
local found = {}
while budget > 0 do
  local step = math.min(budget, 500)
  local some
  if newest then
    some = redis.call('ZREVRANGEBYSCORE', driver, high, low, 'WITHSCORES', 'LIMIT', 0, step)
  else
    some = redis.call('ZRANGEBYSCORE', driver, low, high, 'WITHSCORES', 'LIMIT', 0, step)
  end
  if #some == 0 then return {found, ''} end
  for i = 1, #some, 2 do
    local id, fits = some[i], true
    for _, index in ipairs(asked) do
      if not redis.call('ZSCORE', index, id) then fits = false break end
    end
    if fits and text ~= '' then
      local searched = redis.call('HGET', base .. 'l:' .. id, 'tx')
      fits = searched and string.find(searched, text, 1, true)
    end
    local beyond = string.format('%.0f', tonumber(some[i + 1]))
    if newest then high = '(' .. beyond else low = '(' .. beyond end
    if fits then
      found[#found + 1] = id
      if #found == wanted then return {found, beyond} end
    end
  end
  budget = budget - step
end
return {found, newest and string.sub(high, 2) or string.sub(low, 2)}
