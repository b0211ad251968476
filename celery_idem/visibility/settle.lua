-- Remove deliveries that are done with. A tag belongs to one delivery, so nobody else's goes.
-- KEYS     1 kombu's unacked hash  2 kombu's unacked_index  3 held:<holder>
-- ARGV     delivery tags
-- Returns  how many were still there
local there = redis.call('HDEL', KEYS[1], unpack(ARGV))
redis.call('ZREM', KEYS[2], unpack(ARGV))
redis.call('ZREM', KEYS[3], unpack(ARGV))
return there
