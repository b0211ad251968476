-- Move the scores of long held deliveries ahead again, before any sweep of kombu's could reach them.
-- KEYS     1 kombu's unacked_index  2 held:<holder>
-- ARGV     1 horizon_ms  2 limit
-- Returns  how many were moved: those whose score is less than half the horizon ahead
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local horizon = tonumber(ARGV[1])
local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now - horizon / 2),
                       'LIMIT', 0, tonumber(ARGV[2]))
for _, tag in ipairs(old) do
  redis.call('ZADD', KEYS[1], 'XX', string.format('%.3f', (now + horizon) / 1000), tag)
  redis.call('ZADD', KEYS[2], string.format('%.0f', now), tag)
end
return #old
