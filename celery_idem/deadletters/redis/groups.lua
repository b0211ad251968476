-- Error groups between two positions, without looking at a letter.
-- KEYS[1]  what all keys begin with
-- ARGV     1 lowest position  2 highest position  3 one group only, or empty  4 one task only, or
--          empty
-- Returns  per group: name, error type, place, count, first position, last position, example id
local base, low, high = KEYS[1], ARGV[1], ARGV[2]
local all, of = base .. 'groups', base .. 'group:'
if ARGV[4] ~= '' then all, of = base .. 'groups-of:' .. ARGV[4], base .. 'group-of:' .. ARGV[4] .. '\0' end
local names = ARGV[3] ~= '' and {ARGV[3]} or redis.call('ZRANGE', all, 0, -1)
local out = {}
for _, name in ipairs(names) do
  local index = of .. name
  local count = redis.call('ZCOUNT', index, low, high)
  if count > 0 then
    local first = redis.call('ZRANGEBYSCORE', index, low, high, 'WITHSCORES', 'LIMIT', 0, 1)
    local last = redis.call('ZREVRANGEBYSCORE', index, high, low, 'WITHSCORES', 'LIMIT', 0, 1)
    local fault = redis.call('HMGET', base .. 'fault:' .. name, 'type', 'place')
    out[#out + 1] = {name, fault[1] or '', fault[2] or '', count,
                     string.format('%.0f', tonumber(first[2])),
                     string.format('%.0f', tonumber(last[2])), last[1]}
  end
end
return out
