-- Take over what dead sessions hold: back to the front of its lane, with its count.
-- KEYS[1]  leases   KEYS[2]  sessions being taken over
-- ARGV     1 prefix of a session's lanes  2 how many messages at most  3 session to end now, or ''
-- Returns  {moved, more to do, dead session, ...}, and a {lane, error} for each lane of which
--          something can't be taken over: its session is tried again with the next call
-- a full server refuses a script whose first write could need memory: this one never does
redis.call('ZREM', KEYS[1], '')
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local found, failed, overdue = {}, {}, {}
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
local room, moved, ended = tonumber(ARGV[2]), 0, 0

local function back_to_front(base, id, fields)
  local v = {n = '0', r = '0', w = '0', t = string.match(id, '^%d+')}
  for i = 1, #fields, 2 do v[fields[i]] = fields[i + 1] end
  if not v.m or not tonumber(v.n) then  -- none that a worker of ours has taken
    redis.call('XADD', base .. ':dead', '*', 'm', v.m or table.concat(fields, ' '), 'n', '0',
               'reason', 'undecodable')
    return
  end
  redis.call('XADD', base .. ':f', '*', 'm', v.m, 'n', tonumber(v.n) + 1, 'r', v.r, 't', v.t,
             'w', v.w, unpack(v.s and {'s', v.s} or {}))
end

local function take_over(stream, base, session)
  local held = redis.call('XPENDING', stream, 'w', '-', '+', room - moved, session)
  for _, entry in ipairs(held) do
    local id = entry[1]
    local e = redis.call('XRANGE', stream, id, id)[1]
    if e then
      back_to_front(base, id, e[2])
      moved = moved + 1
    end
    redis.call('XACK', stream, 'w', id)
    redis.call('XDEL', stream, id)
  end
  return #held
end

-- Whether nothing of this lane is the session's any more.
local function clear(base, session)
  local before = moved
  for _, step in ipairs({'f', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'}) do
    local stream = base .. ':' .. step
    local group = redis.pcall('XPENDING', stream, 'w')
    if not group.err then
      -- again while it finds some: of those that were deleted by hand, none counts as moved
      while moved < room and take_over(stream, base, session) > 0 do end
      if moved >= room then return false end
      redis.call('XGROUP', 'DELCONSUMER', stream, 'w', session)
      if step ~= '0' and redis.call('XLEN', stream) == 0 then redis.call('DEL', stream) end
    end
  end
  if redis.call('LLEN', base .. ':bell') == 0 and (moved > before or ARGV[3] == session) then
    -- also when nothing moved: it may have been woken for a message that it did not take
    redis.call('LPUSH', base .. ':bell', 1)
  end
  return true
end

local function answer(more)
  local out = {moved, more, unpack(found)}
  for base, why in pairs(failed) do out[#out + 1] = {base, why} end
  return out
end

for _, session in ipairs(redis.call('ZRANGE', KEYS[2], 0, 9)) do
  local all = true
  for _, base in ipairs(redis.call('SMEMBERS', ARGV[1] .. session)) do
    -- whatever is wrong with one lane stops no other one
    local done, cleared = pcall(clear, base, session)
    if done and not cleared then return answer(1) end
    if not done then
      failed[base] = type(cleared) == 'table' and cleared.err or tostring(cleared)
      all = false
    end
  end
  if all then
    redis.call('DEL', ARGV[1] .. session)
    redis.call('ZREM', KEYS[2], session)
    -- not the one that asks: each of its calls ends it anew, and would ask for one more
    if session ~= ARGV[3] then ended = ended + 1 end
  else  -- behind those that wait for their turn
    redis.call('ZADD', KEYS[2], now, session)
  end
end
return answer((moved > 0 or ended > 0) and redis.call('EXISTS', KEYS[2]) or 0)
