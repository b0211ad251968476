-- Extend one lease from now, if the owner still holds the key (core/protocol.py: renew).
-- KEYS[1]  the record, a hash
-- ARGV     1 owner  2 lease_ms  3 retention_ms  4 task id  5 attempt
-- Returns  1 extended, or put back where the record was gone; 0 the claim is lost
local key, owner, lease, retention = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local t = redis.call('TIME')
local now_us = tonumber(t[1]) * 1000000 + tonumber(t[2])
local now = math.floor(now_us / 1000)
local r = redis.call('HMGET', key, 'st', 'ow')
if redis.call('EXISTS', key) == 0 then
  redis.call('HSET', key, 'st', 'r', 'ow', owner, 'fe', string.format('%.0f', now_us),
             'id', ARGV[4], 'at', ARGV[5], 'rn', 1, 'ct', string.format('%.0f', now))
elseif r[1] ~= 'r' or r[2] ~= owner then
  return 0
end
redis.call('HSET', key, 'lu', string.format('%.0f', now + lease), 'lm', lease, 'rt', retention)
redis.call('PEXPIRE', key, math.max(retention, lease))
return 1
