-- Keep a message until it is due; by the server's clock, whatever the producer's says.
-- KEYS[1]  the lane   KEYS[2]  due lanes   KEYS[3]  the keepers' bell
-- ARGV     1 step  2 envelope  3 delay_ms  4 ttl_ms of the lane (0: for ever)  5 score
-- Returns  the time at which it is due, in ms
local base, delay = KEYS[1], tonumber(ARGV[3])
local t = redis.call('TIME')
local us = tonumber(t[1]) * 1000000 + tonumber(t[2])
local due = math.floor(us / 1000) + delay
-- the µs in front keep messages that are due in the same ms in their order
local step = redis.call('EXISTS', base .. ':scored') == 1 and 's' .. ARGV[5] or ARGV[1]
local member = string.format('%016.0f|%s|0|0|0|', us, step) .. ARGV[2]
redis.call('ZADD', base .. ':d', due, member)
redis.call('ZADD', KEYS[2], 'LT', due, base)
if redis.call('ZRANGE', KEYS[2], 0, 0)[1] == base
   and redis.call('ZRANGE', base .. ':d', 0, 0)[1] == member
   and redis.call('LLEN', KEYS[3]) == 0 then
  redis.call('LPUSH', KEYS[3], 1)
end
if ARGV[4] ~= '0' then
  -- a lane is not thrown away before the last of what waits in it is due
  local last = tonumber(redis.call('ZRANGE', base .. ':d', -1, -1, 'WITHSCORES')[2])
  redis.call('PEXPIRE', base .. ':d', math.max(last - math.floor(us / 1000), 0) + tonumber(ARGV[4]))
end
return due
