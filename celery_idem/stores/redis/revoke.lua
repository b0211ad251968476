-- Mark the key: no later claim is granted (core/protocol.py: revoke).
-- KEYS[1]  the record, a hash
-- ARGV     1 retention_ms, the least time that the mark is kept
-- Returns  1
local key, retention = KEYS[1], tonumber(ARGV[1])
local t = redis.call('TIME')
local now = string.format('%.0f', tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000))
redis.call('HSET', key, 'rv', 1)
redis.call('HSETNX', key, 'st', 'f')
redis.call('HSETNX', key, 'ct', now)
local left = redis.call('PTTL', key)
if left < retention then redis.call('PEXPIRE', key, retention) end
return 1
