-- Record a step of a running claim (core/protocol.py: put_step).
-- KEYS[1]  the record, a hash
-- ARGV     1 owner  2 step name  3 value  4 fence  5 lease_ms  6 retention_ms  7 task id  8 attempt
-- Returns  1 recorded; 0 the claim is lost, nothing changed
local key = KEYS[1]
local r = redis.call('HMGET', key, 'st', 'ow')
if redis.call('EXISTS', key) == 0 then
  local t = redis.call('TIME')
  local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
  redis.call('HSET', key, 'st', 'r', 'ow', ARGV[1], 'fe', ARGV[4], 'lm', ARGV[5], 'rt', ARGV[6],
             'lu', string.format('%.0f', now + tonumber(ARGV[5])), 'id', ARGV[7], 'at', ARGV[8],
             'rn', 1, 'ct', string.format('%.0f', now))
  redis.call('PEXPIRE', key, math.max(tonumber(ARGV[5]), tonumber(ARGV[6])))
elseif r[1] ~= 'r' or r[2] ~= ARGV[1] then
  return 0
end
redis.call('HSET', key, 's:' .. ARGV[2], ARGV[3])
redis.call('HSET', key, 'ns', 1)
return 1
