-- Set deliveries aside for which no queue was found, to be looked at again after a while.
-- KEYS     1 held:<holder>  2 held:<aside>  3 holders  4 kombu's unacked_index
-- ARGV     1 aside  2 pause_ms until they are looked at again  3 horizon_ms  4… delivery tags
-- Returns  how many were set aside
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local moved = 0
for i = 4, #ARGV do
  local since = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if since then
    redis.call('ZADD', KEYS[2], since, ARGV[i])
    redis.call('ZREM', KEYS[1], ARGV[i])
    redis.call('ZADD', KEYS[4], 'XX', string.format('%.3f', (now + tonumber(ARGV[3])) / 1000), ARGV[i])
    moved = moved + 1
  end
end
if moved > 0 then
  redis.call('ZADD', KEYS[3], string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
end
return moved
