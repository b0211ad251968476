-- Renew a session's lease, and say what a keeper has to look at next.
-- KEYS[1]  leases   KEYS[2]  due lanes   KEYS[3]  sessions being taken over
-- KEYS[4]  the server's time at the last tick
-- ARGV     1 session  2 lease_ms
-- Returns  {alive, ms until a delayed message is due, ms until a lease is over (-1: none),
--           ms since this lease was renewed, by this clock}
-- a full server refuses a script whose first write could need memory: this one never does
redis.call('ZREM', KEYS[1], '')
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
-- the clock went back: leases go back with it, or the dead would have theirs for so much longer
local ahead = tonumber(redis.call('GET', KEYS[4]) or '0') - now
if ahead > 0 then
  local all = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
  for i = 1, #all, 2 do redis.call('ZADD', KEYS[1], tonumber(all[i + 1]) - ahead, all[i]) end
end
redis.call('SET', KEYS[4], string.format('%.0f', now), 'PX', 86400000)
local alive, silent, lease = 0, 0, tonumber(ARGV[2])
-- a lease that is over but that nobody has taken over yet is renewed: nobody else has its messages
local ends = redis.call('ZSCORE', KEYS[1], ARGV[1])
if ends then
  silent = now - (tonumber(ends) - lease)
  redis.call('ZADD', KEYS[1], now + lease, ARGV[1])
  alive = 1
end
local due, over = -1, -1
local head = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if head[2] then due = math.max(tonumber(head[2]) - now, 0) end
head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if head[2] then over = math.max(tonumber(head[2]) - now + 1, 0) end
if redis.call('EXISTS', KEYS[3]) == 1 then over = 0 end
return {alive, due, over, silent}
