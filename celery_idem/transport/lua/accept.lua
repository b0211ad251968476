-- Move messages that stock producers sent from kombu's lists to the lane, oldest first.
-- KEYS[1]  the lane   KEYS[2..]  lists, most urgent first
-- ARGV     1 how many at most  2.. the step of each list
-- Returns  how many were moved
local moved, room = 0, tonumber(ARGV[1])
for i = 2, #KEYS do
  while moved < room do
    local body = redis.call('RPOP', KEYS[i])
    if not body then break end
    redis.call('XADD', KEYS[1] .. ':' .. ARGV[i], '*', 'm', body)
    moved = moved + 1
  end
end
if moved > 0 and redis.call('LLEN', KEYS[1] .. ':bell') == 0 then
  redis.call('LPUSH', KEYS[1] .. ':bell', 1)
end
return moved
