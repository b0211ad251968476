-- Declare a holder dead: all it held now belongs to a new holder, leased to whoever calls.
-- Costs the same for one delivery or a million. Does nothing when the lease was renewed meanwhile.
-- KEYS     1 holders  2 held:<dead>  3 held:<taker>
-- ARGV     1 dead  2 taker  3 lease_ms
-- Returns  how many deliveries were taken over; -1: the lease is not over, or another was first
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local deadline = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not deadline or tonumber(deadline) > now then
  return -1
end
redis.call('ZREM', KEYS[1], ARGV[1])
if redis.call('EXISTS', KEYS[2]) == 0 then
  return 0
end
redis.call('RENAME', KEYS[2], KEYS[3])
redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[3])), ARGV[2])
return redis.call('ZCARD', KEYS[3])
