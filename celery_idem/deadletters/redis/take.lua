-- The right to replay a letter now, by the server's clock.
-- KEYS[1]  what all keys begin with
-- ARGV     1 id  2 by  3 lease in ms
-- Returns  1; 0 when it is gone, or somebody else has it
local letter = KEYS[1] .. 'l:' .. ARGV[1]
local r = redis.call('HMGET', letter, 'po', 'ho', 'un', 'st')
if not r[1] then return 0 end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
if r[2] and r[2] ~= ARGV[2] and tonumber(r[3]) > now then return 0 end
redis.call('HSET', letter, 'ho', ARGV[2], 'un', string.format('%.0f', now + tonumber(ARGV[3])))
if r[4] ~= 'replaying' then  -- 'rs': how it stands again when it is given back
  redis.call('HSET', letter, 'st', 'replaying', 'rs', r[4])
  redis.call('ZREM', KEYS[1] .. 'state:' .. r[4], ARGV[1])
  redis.call('ZADD', KEYS[1] .. 'state:replaying', r[1], ARGV[1])
end
return 1
