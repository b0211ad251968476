-- Record the result: compare-and-set on the owner (core/protocol.py: complete).
-- KEYS[1]  the record, a hash
-- ARGV     1 owner  2 result  3 retention_ms  4 fence  5 task id  6 attempt
-- Returns  1 recorded (or was already, by this owner); 0 the claim is lost, nothing changed
local key, owner, retention = KEYS[1], ARGV[1], tonumber(ARGV[3])
local t = redis.call('TIME')
local now = string.format('%.0f', tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000))
local r = redis.call('HMGET', key, 'st', 'ow')
if r[1] == 'd' and r[2] == owner then return 1 end
if r[1] == 'r' and r[2] == owner then
  redis.call('HSET', key, 'st', 'd', 'rs', ARGV[2], 'dn', now, 'lu', 0, 'rt', retention)
elseif redis.call('EXISTS', key) == 0 then
  redis.call('HSET', key, 'st', 'd', 'rs', ARGV[2], 'dn', now, 'lu', 0, 'rt', retention,
             'ow', owner, 'fe', ARGV[4], 'id', ARGV[5], 'at', ARGV[6], 'rn', 1, 'ct', now)
else
  return 0
end
redis.call('PEXPIRE', key, retention)
return 1
