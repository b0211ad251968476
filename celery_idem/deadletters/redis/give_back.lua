-- The replay did not happen.
-- KEYS[1]  what all keys begin with
-- ARGV     1 id  2 by
-- Returns  1; 0 when that one does not have it
local letter = KEYS[1] .. 'l:' .. ARGV[1]
if redis.call('HGET', letter, 'ho') ~= ARGV[2] then return 0 end
redis.call('HDEL', letter, 'ho', 'un')
return 1
