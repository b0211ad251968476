-- Give a message that waits in a scored lane another score; its age goes on counting.
-- KEYS[1]  the lane
-- ARGV     1 its name  2 score
-- Returns  1, or 0 when it does not wait there
local base = KEYS[1]
local id = redis.call('HGET', base .. ':i', ARGV[1])
if not id or not redis.call('ZSCORE', base .. ':z', id) then return 0 end
local kept = redis.call('HGET', base .. ':b', id)
if not kept then return 0 end
local since = tonumber(string.match(id, '^%d+')) / 1000000
local rate = tonumber(redis.call('GET', base .. ':scored') or '0')
redis.call('ZADD', base .. ':z', tonumber(ARGV[2]) + rate * math.floor(since), id)
local waited, rest = string.match(kept, '^(%d)|[^|]*|(.*)$')
redis.call('HSET', base .. ':b', id, waited .. '|' .. ARGV[2] .. '|' .. rest)
return 1
