-- Move one message that a stock worker had taken, and did not ack, to the front of its lane.
-- KEYS[1]  the lane   KEYS[2]  stock's hash of unacked messages   KEYS[3]  its index by time
-- ARGV     1 delivery tag  2 envelope
-- Returns  1, or 0 when it was acked or restored meanwhile
if redis.call('HDEL', KEYS[2], ARGV[1]) == 0 then return 0 end
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('XADD', KEYS[1] .. ':f', '*', 'm', ARGV[2], 'n', '1')
if redis.call('LLEN', KEYS[1] .. ':bell') == 0 then
  redis.call('LPUSH', KEYS[1] .. ':bell', 1)
end
return 1
