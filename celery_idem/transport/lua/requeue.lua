-- Put one message back: the first time at once, then after a delay that doubles every time.
-- KEYS[1]  the lane   KEYS[2]  due lanes   KEYS[3]  the keepers' bell
-- ARGV     1 session  2 step  3 id  4 first delay_ms (of the second requeue)  5 longest delay_ms
-- Returns  {1, requeues, delay_ms}, or {0} when this session does not hold it any more
local base, stream, id = KEYS[1], KEYS[1] .. ':' .. ARGV[2], ARGV[3]
local held = redis.pcall('XPENDING', stream, 'w', id, id, 1, ARGV[1])
if held.err or #held == 0 then return {0} end
local e = redis.call('XRANGE', stream, id, id)[1]
redis.call('XACK', stream, 'w', id)
redis.call('XDEL', stream, id)
if ARGV[2] ~= '0' and redis.call('XLEN', stream) == 0 then redis.call('DEL', stream) end
if not e then return {0} end
local v = {n = '0', r = '0', t = string.match(id, '^%d+')}
for i = 1, #e[2], 2 do v[e[2][i]] = e[2][i + 1] end
local requeues = tonumber(v.r) + 1
if requeues == 1 and not v.s then
  redis.call('XADD', base .. ':f', '*', 'm', v.m, 'n', tonumber(v.n) + 1, 'r', '1', 't', v.t,
             'w', v.w or '0')
  if redis.call('LLEN', base .. ':bell') == 0 then redis.call('LPUSH', base .. ':bell', 1) end
  return {1, 1, 0}
end
local delay = 0
if requeues > 1 then
  delay = math.min(tonumber(ARGV[4]) * 2 ^ math.min(requeues - 2, 30), tonumber(ARGV[5]))
end
local t = redis.call('TIME')
local us = tonumber(t[1]) * 1000000 + tonumber(t[2])
local due = math.floor(us / 1000) + delay
local head = string.format('%016.0f|%s|%d|%d|%s|', us, v.s and 's' .. v.s or 'f',
                           tonumber(v.n) + 1, requeues, v.t)
redis.call('ZADD', base .. ':d', due, head .. v.m)
redis.call('ZADD', KEYS[2], 'LT', due, base)
if redis.call('ZRANGE', KEYS[2], 0, 0)[1] == base and redis.call('LLEN', KEYS[3]) == 0 then
  redis.call('LPUSH', KEYS[3], 1)
end
return {1, requeues, delay}
