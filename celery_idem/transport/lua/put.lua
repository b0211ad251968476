-- Append a message to a lane and wake one worker that waits for it.
-- KEYS[1]  the lane
-- ARGV     1 step (its priority)  2 envelope  3 ttl_ms of the lane (0: for ever)
--          4 '1' when its ETA is over already, else '0'  5 score  6 name, both for a scored lane
-- Returns  the entry's id; in a scored lane its place
local base = KEYS[1]
local stream, rate, id = base .. ':' .. ARGV[1], redis.call('GET', base .. ':scored'), nil
if rate then
  local t = redis.call('TIME')
  id = string.format('%s%06d:', t[1], t[2]) .. ARGV[6]
  -- all that waits ages alike, so that the order of any two never changes by itself
  redis.call('ZADD', base .. ':z', tonumber(ARGV[5]) + tonumber(rate) * tonumber(t[1]), id)
  redis.call('HSET', base .. ':b', id, ARGV[4] .. '|' .. ARGV[5] .. '|' .. ARGV[2])
  redis.call('HSET', base .. ':i', ARGV[6], id)
elseif ARGV[4] == '1' then
  id = redis.call('XADD', stream, '*', 'm', ARGV[2], 'w', '1')
else
  id = redis.call('XADD', stream, '*', 'm', ARGV[2])
end
if redis.call('LLEN', base .. ':bell') == 0 then redis.call('LPUSH', base .. ':bell', 1) end
if ARGV[3] ~= '0' then
  for _, part in ipairs({':f', ':0', ':' .. ARGV[1], ':z', ':b', ':i', ':scored', ':bell'}) do
    redis.call('PEXPIRE', base .. part, ARGV[3])
  end
  -- what waits for its time is not to go before that
  local left = redis.call('PTTL', base .. ':d')
  if left >= 0 and left < tonumber(ARGV[3]) then redis.call('PEXPIRE', base .. ':d', ARGV[3]) end
end
return id
