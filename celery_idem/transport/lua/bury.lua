-- Set one message aside that nobody can read or route.
-- KEYS[1]  the lane
-- ARGV     1 step  2 id  3 reason
-- Returns  1, or 0 when it is not there any more
local stream, id = KEYS[1] .. ':' .. ARGV[1], ARGV[2]
local e = redis.call('XRANGE', stream, id, id)[1]
if not e then return 0 end
local v = {n = '0'}
for i = 1, #e[2], 2 do v[e[2][i]] = e[2][i + 1] end
redis.call('XADD', KEYS[1] .. ':dead', '*', 'm', v.m, 'n', v.n, 'reason', ARGV[3])
redis.pcall('XACK', stream, 'w', id)
redis.call('XDEL', stream, id)
return 1
