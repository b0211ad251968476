-- Put off the expiry of a lane that is in use. What waits for its time outlives it.
-- KEYS[1]  the lane
-- ARGV     1 ttl_ms  2.. steps
-- Returns  nothing
local base, ttl = KEYS[1], tonumber(ARGV[1])

local function keep(part, ms)
  if redis.call('PTTL', base .. part) < ms then redis.call('PEXPIRE', base .. part, ms) end
end

for i = 2, #ARGV do keep(':' .. ARGV[i], ttl) end
for _, part in ipairs({':z', ':b', ':i', ':scored', ':bell'}) do keep(part, ttl) end
local last = redis.call('ZRANGE', base .. ':d', -1, -1, 'WITHSCORES')[2]
if last then
  local t = redis.call('TIME')
  local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
  keep(':d', math.max(tonumber(last) - now, 0) + ttl)
end
