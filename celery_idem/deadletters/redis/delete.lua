-- Gone for good, out of every index.
-- KEYS[1]  what all keys begin with
-- ARGV     1 id  2 by: only while that one has it; empty: whoever does
--          3 seconds to keep its history because it was sent; 0: not at all
-- Returns  1; 0 when it is gone, or not that one's
local base, id = KEYS[1], ARGV[1]
local letter = base .. 'l:' .. id
local r = redis.call('HMGET', letter, 'ho', 'ta', 'la', 're', 'gr', 'ke', 'fm', 'ti', 'hi', 'or',
                     'qu', 'st')
if not r[2] then return 0 end
if ARGV[2] ~= '' and r[1] ~= ARGV[2] then return 0 end
redis.call('DEL', letter)
if tonumber(ARGV[3]) > 0 then
  local trail = base .. 'sent:' .. id
  redis.call('HSET', trail, 'fm', r[7], 'ti', r[8], 'hi', r[9])
  if r[10] then redis.call('HSET', trail, 'or', r[10]) end
  redis.call('EXPIRE', trail, ARGV[3])
end
redis.call('ZREM', base .. 'all', id)
for kind, name in pairs({task = r[2], lane = r[3], queue = r[11]}) do
  redis.call('ZREM', base .. kind .. ':' .. name, id)
  if redis.call('EXISTS', base .. kind .. ':' .. name) == 0 then
    redis.call('ZREM', base .. 'names:' .. kind, name)
  end
end
redis.call('ZREM', base .. 'reason:' .. r[4], id)
redis.call('ZREM', base .. 'state:' .. r[12], id)
redis.call('ZREM', base .. 'group:' .. r[5], id)
redis.call('ZREM', base .. 'keys', r[6] .. '\0' .. id)
local of_task = base .. 'group-of:' .. r[2] .. '\0' .. r[5]
redis.call('ZREM', of_task, id)
if redis.call('EXISTS', of_task) == 0 then redis.call('ZREM', base .. 'groups-of:' .. r[2], r[5]) end
if redis.call('EXISTS', base .. 'group:' .. r[5]) == 0 then
  redis.call('DEL', base .. 'fault:' .. r[5])
  redis.call('ZREM', base .. 'groups', r[5])
end
return 1
