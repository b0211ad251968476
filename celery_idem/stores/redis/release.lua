-- Give the key back (core/protocol.py: release).
-- KEYS[1]  the record, a hash
-- ARGV     1 owner  2 ending: retry, failure, release  3 wait_ms  4 retention_ms
--          5 task id  6 attempt published by a retry
-- Returns  1 given back (or it was already, or the record is gone); 0 the claim is lost, nothing
--          changed
local key, wait, retention = KEYS[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local r = redis.call('HMGET', key, 'st', 'ow')
if redis.call('EXISTS', key) == 0 then return 1 end
if r[2] ~= ARGV[1] or r[1] == 'd' then return 0 end
if r[1] ~= 'r' then return 1 end
if ARGV[2] == 'retry' then
  local t = redis.call('TIME')
  local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
  redis.call('HSET', key, 'st', 'w', 'lu', string.format('%.0f', now + wait),
             'at', ARGV[6], 'a:' .. ARGV[5], ARGV[6])
  redis.call('HINCRBY', key, 'fa', 1)
  redis.call('PEXPIRE', key, retention + wait)
  return 1
end
redis.call('HSET', key, 'st', 'f', 'lu', 0)
redis.call('HINCRBY', key, ARGV[2] == 'failure' and 'fa' or 're', 1)
redis.call('PEXPIRE', key, retention)
return 1
