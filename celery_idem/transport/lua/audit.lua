-- Find consumers of a lane that hold messages without any lease, and let them be taken over.
-- KEYS[1]  leases   KEYS[2]  sessions being taken over   KEYS[3]  the lane
-- ARGV     1 prefix of a session's lanes
-- Returns  how many were found
local base, found = KEYS[3], 0
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
for _, step in ipairs({'f', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'}) do
  local stream = base .. ':' .. step
  local consumers = redis.pcall('XINFO', 'CONSUMERS', stream, 'w')
  for _, consumer in ipairs(consumers.err and {} or consumers) do
    local v = {}
    for i = 1, #consumer, 2 do v[consumer[i]] = consumer[i + 1] end
    if v.name ~= 'nobody' and not redis.call('ZSCORE', KEYS[1], v.name)
       and not redis.call('ZSCORE', KEYS[2], v.name) then
      if v.pending > 0 then
        redis.call('ZADD', KEYS[2], now, v.name)
        redis.call('SADD', ARGV[1] .. v.name, base)
        found = found + 1
      else
        redis.call('XGROUP', 'DELCONSUMER', stream, 'w', v.name)
      end
    end
  end
end
return found
