-- Put deliveries back on their queues: pushed and removed in one step, and only those that are
-- still recorded under this holder. Pushed first: an error leaves the record where it is.
-- KEYS     1 kombu's unacked hash  2 kombu's unacked_index  3 held:<holder>  4 holders  5… queues
-- ARGV     1 holder  2 lease_ms  3 "1": forget the holder when it holds nothing any more
--          4… five for each: tag, "RPUSH" (next) or "LPUSH" (last), payload,
--             first and last queue of it as positions in KEYS ("0": only drop the tag, no record)
-- Returns  how many deliveries were put back
local back = 0
for i = 4, #ARGV, 5 do
  local tag, push, payload = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local first, last = tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4])
  if redis.call('ZSCORE', KEYS[3], tag) then
    if first > 0 and redis.call('HEXISTS', KEYS[1], tag) == 1 then
      for k = first, last do
        redis.call(push, KEYS[k], payload)
      end
      redis.call('HDEL', KEYS[1], tag)
      back = back + 1
    end
    redis.call('ZREM', KEYS[2], tag)
    redis.call('ZREM', KEYS[3], tag)
  end
end
if ARGV[3] == '1' and redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('ZREM', KEYS[4], ARGV[1])
elseif redis.call('ZSCORE', KEYS[4], ARGV[1]) then
  local t = redis.call('TIME')
  local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
  redis.call('ZADD', KEYS[4], string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
end
return back
