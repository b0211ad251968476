-- Take over what dead sessions hold: back to the front of its lane, with its count.
-- KEYS[1]  leases   KEYS[2]  sessions being taken over
-- ARGV     1 prefix of a session's lanes  2 how many messages at most  3 session to end now, or ''
-- Returns  {moved, more to do, dead session, ...}
-- a full server refuses a script whose first write could need memory: this one never does
redis.call('ZREM', KEYS[1], '')
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local found, overdue = {}, {}
if ARGV[3] ~= '' then
  redis.call('ZREM', KEYS[1], ARGV[3])
  redis.call('ZADD', KEYS[2], now, ARGV[3])
else
  -- not by one that ends: after an outage only keepers know whether the living had time to renew
  overdue = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. now, 'LIMIT', 0, 10)
end
for _, session in ipairs(overdue) do
  -- from here on it can take and ack nothing any more, even if it wakes up
  redis.call('ZREM', KEYS[1], session)
  redis.call('ZADD', KEYS[2], now, session)
  found[#found + 1] = session
end
local room, moved = tonumber(ARGV[2]), 0

local function take_over(stream, base, session)
  local held = redis.call('XPENDING', stream, 'w', '-', '+', room - moved, session)
  for _, entry in ipairs(held) do
    local id = entry[1]
    local e = redis.call('XRANGE', stream, id, id)[1]
    if e then
      local f, field = e[2], {}
      for i = 1, #f, 2 do field[f[i]] = f[i + 1] end
      local since = field.t or string.match(id, '^%d+')
      redis.call('XADD', base .. ':f', '*', 'm', field.m, 'n', tonumber(field.n or 0) + 1,
                 'r', field.r or '0', 't', since, 'w', field.w or '0')
      moved = moved + 1
    end
    redis.call('XACK', stream, 'w', id)
    redis.call('XDEL', stream, id)
  end
  return #held
end

for _, session in ipairs(redis.call('ZRANGE', KEYS[2], 0, 9)) do
  for _, base in ipairs(redis.call('SMEMBERS', ARGV[1] .. session)) do
    local before = moved
    for _, step in ipairs({'f', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'}) do
      local stream = base .. ':' .. step
      local group = redis.pcall('XPENDING', stream, 'w')
      if not group.err then
        -- again while it finds some: of those that were deleted by hand, none counts as moved
        while moved < room and take_over(stream, base, session) > 0 do end
        if moved >= room then return {moved, 1, unpack(found)} end
        redis.call('XGROUP', 'DELCONSUMER', stream, 'w', session)
        if step ~= '0' and redis.call('XLEN', stream) == 0 then redis.call('DEL', stream) end
      end
    end
    if redis.call('LLEN', base .. ':bell') == 0 and (moved > before or ARGV[3] == session) then
      -- also when nothing moved: it may have been woken for a message that it did not take
      redis.call('LPUSH', base .. ':bell', 1)
    end
  end
  redis.call('DEL', ARGV[1] .. session)
  redis.call('ZREM', KEYS[2], session)
end
return {moved, redis.call('EXISTS', KEYS[2]), unpack(found)}
