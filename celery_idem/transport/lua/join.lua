-- Register a session with its lease and the lanes it may hold messages of, before it takes any.
-- KEYS[1]  leases   KEYS[2]  lanes of this session   KEYS[3]  the server's time at the last tick
-- ARGV     1 session  2 lease_ms  3 first ('1': a new session; else it must still be alive)
--          4.. lanes
-- Returns  1, or 0 when the session was declared dead
if ARGV[3] ~= '1' and not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
-- a full server refuses a script whose first write could need memory: this one never does
redis.call('ZREM', KEYS[1], '')
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
-- where the clock went back since, the next tick moves this lease with all others
now = math.max(now, tonumber(redis.call('GET', KEYS[3]) or '0'))
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
for i = 4, #ARGV do redis.call('SADD', KEYS[2], ARGV[i]) end
return 1
