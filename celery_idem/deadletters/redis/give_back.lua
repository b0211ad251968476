-- The replay did not happen.
-- KEYS[1]  what all keys begin with
-- ARGV     1 id  2 by
-- Returns  1; 0 when that one does not have it
local letter = KEYS[1] .. 'l:' .. ARGV[1]
local r = redis.call('HMGET', letter, 'ho', 'po', 'rs')
if r[1] ~= ARGV[2] then return 0 end
redis.call('HDEL', letter, 'ho', 'un', 'rs')
redis.call('HSET', letter, 'st', r[3])
redis.call('ZREM', KEYS[1] .. 'state:replaying', ARGV[1])
redis.call('ZADD', KEYS[1] .. 'state:' .. r[3], r[2], ARGV[1])
return 1
