-- Move one message that a stock worker had taken, and did not ack, to the front of its lane.
-- KEYS[1]  the lane   KEYS[2]  stock's hash of unacked messages   KEYS[3]  its index by time
-- KEYS[4]  due lanes   KEYS[5]  the keepers' bell
-- ARGV     1 delivery tag  2 envelope  3 delay_ms until its ETA (0: now)
-- Returns  1, or 0 when it was acked or restored meanwhile
if redis.call('HDEL', KEYS[2], ARGV[1]) == 0 then return 0 end
redis.call('ZREM', KEYS[3], ARGV[1])
if ARGV[3] == '0' then
  redis.call('XADD', KEYS[1] .. ':f', '*', 'm', ARGV[2], 'n', '1')
  if redis.call('LLEN', KEYS[1] .. ':bell') == 0 then
    redis.call('LPUSH', KEYS[1] .. ':bell', 1)
  end
  return 1
end
local t = redis.call('TIME')
local us = tonumber(t[1]) * 1000000 + tonumber(t[2])
local due = math.floor(us / 1000) + tonumber(ARGV[3])
-- nobody had begun it: a worker only held it in its memory until it would be due
redis.call('ZADD', KEYS[1] .. ':d', due, string.format('%016.0f|f|0|0|0|', us) .. ARGV[2])
redis.call('ZADD', KEYS[4], 'LT', due, KEYS[1])
if redis.call('LLEN', KEYS[5]) == 0 then redis.call('LPUSH', KEYS[5], 1) end
return 1
