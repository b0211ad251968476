-- Renew the leases of one process's holders, and look for holders whose lease is over.
-- When nobody ticked for a while, the server or the network was away: living holders get
-- a grace to come back before anything counts as over. So they do when the server's clock went back:
-- leases go back with it, or the dead would have theirs for as long as it was ahead.
-- KEYS     1 holders  2 pulse
-- ARGV     1 lease_ms  2 quiet_ms  3 grace_ms  4 limit  5… holders of this process
-- Returns  {those of 5… that have no lease any more}, {up to limit holders whose lease is over}
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local pulse = redis.call('HMGET', KEYS[2], 'at', 'grace')
local at, grace = tonumber(pulse[1] or '0'), tonumber(pulse[2] or '0')
if at > now then
  local all = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
  for i = 1, #all, 2 do
    redis.call('ZADD', KEYS[1], string.format('%.0f', tonumber(all[i + 1]) - (at - now)), all[i])
  end
end
if at > now or now - at > tonumber(ARGV[2]) then
  grace = now + tonumber(ARGV[3])
end
redis.call('HSET', KEYS[2], 'at', string.format('%.0f', now), 'grace', string.format('%.0f', grace))
redis.call('PEXPIRE', KEYS[2], 86400000)
local lost = {}
for i = 5, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[1])), ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
if now < grace then
  return {lost, {}}
end
return {lost, redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now),
                         'LIMIT', 0, tonumber(ARGV[4]))}
