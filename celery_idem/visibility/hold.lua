-- Record a delivery under its holder and give the holder a fresh lease.
-- KEYS     1 kombu's unacked hash  2 kombu's unacked_index  3 held:<holder>  4 holders
-- ARGV     1 delivery tag  2 record (kombu's JSON)  3 holder  4 lease_ms  5 horizon_ms
-- Returns  1 the holder had no lease (its first delivery, or it was declared dead), 0 it had one
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
-- kombu's score is in seconds; so far ahead, no sweep of any app takes it for overdue
redis.call('ZADD', KEYS[2], string.format('%.3f', (now + tonumber(ARGV[5])) / 1000), ARGV[1])
redis.call('ZADD', KEYS[3], string.format('%.0f', now), ARGV[1])
return redis.call('ZADD', KEYS[4], string.format('%.0f', now + tonumber(ARGV[4])), ARGV[3])
