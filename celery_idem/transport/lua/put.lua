-- Append a message to a lane and wake one worker that waits for it.
-- KEYS[1]  the lane
-- ARGV     1 step (its priority)  2 envelope  3 ttl_ms of the lane (0: for ever)
--          4 '1' when its ETA is over already, else '0'
-- Returns  the entry's id
local base = KEYS[1]
local stream, id = base .. ':' .. ARGV[1], nil
if ARGV[4] == '1' then
  id = redis.call('XADD', stream, '*', 'm', ARGV[2], 'w', '1')
else
  id = redis.call('XADD', stream, '*', 'm', ARGV[2])
end
if redis.call('LLEN', base .. ':bell') == 0 then redis.call('LPUSH', base .. ':bell', 1) end
if ARGV[3] ~= '0' then
  for _, part in ipairs({':f', ':0', ':' .. ARGV[1], ':d', ':bell'}) do
    redis.call('PEXPIRE', base .. part, ARGV[3])
  end
end
return id
