-- Hand what is due from the waiting set to its lane's stream.
-- KEYS[1]  due lanes
-- ARGV     1 how many messages at most
-- Returns  {moved, ms until the next one is due (-1: none; 0: more are due now)}, and a
--          {lane, error} for each lane of which something can't be moved: it is tried again later
-- a full server refuses a script whose first write could need memory: this one never does
redis.call('ZREM', KEYS[1], '')
local t = redis.call('TIME')
local now_us = tonumber(t[1]) * 1000000 + tonumber(t[2])
local now = math.floor(now_us / 1000)
local later = now + 60000
local room, moved, looked, failed = tonumber(ARGV[1]), 0, 0, {}

-- Whatever is wrong with one message, or one lane, stops no other one.
local function try(base, act, ...)
  local done, why = pcall(act, ...)
  if not done then failed[base] = type(why) == 'table' and why.err or tostring(why) end
  return done
end

-- Anybody's JSON: a name is what can be one, as for whom puts it there without a delay.
local function name_of(body)
  local known, message = pcall(cjson.decode, body)
  local headers = known and type(message) == 'table' and message.headers
  local id = type(headers) == 'table' and headers.id
  if type(id) == 'string' or type(id) == 'number' then return tostring(id) end
  return 'unnamed'
end

local function place_by_score(base, score, n, r, since, body)
  local points = tonumber(score)
  if not points or points ~= points then score, points = '0', 0 end
  local us = tonumber(since) > 0 and tonumber(since) * 1000 or now_us
  local rate = tonumber(redis.call('GET', base .. ':scored') or '0')
  local name = name_of(body)
  local id = string.format('%016.0f:', us) .. name
  while redis.call('HEXISTS', base .. ':b', id) == 1 do id = id .. '+' end
  redis.call('ZADD', base .. ':z', points + rate * math.floor(us / 1000000), id)
  local counts = n == '0' and '' or n .. '|' .. r .. '|' .. since .. '|'
  redis.call('HSET', base .. ':b', id, '1|' .. score .. '|' .. counts .. body)
  redis.call('HSET', base .. ':i', name, id)
end

local function hand_over(base, member)
  local step, n, r, since, body = string.match(member, '^%d+|([^|]*)|(%d+)|(%d+)|(%d+)|(.*)$')
  if not step then
    redis.call('XADD', base .. ':dead', '*', 'm', member, 'n', '0', 'reason', 'undecodable')
  elseif string.sub(step, 1, 1) == 's' then
    place_by_score(base, string.sub(step, 2), n, r, since, body)
  elseif n == '0' then
    redis.call('XADD', base .. ':' .. step, '*', 'm', body, 'w', '1')
  else
    redis.call('XADD', base .. ':' .. step, '*', 'm', body, 'n', n, 'r', r, 't', since, 'w', '1')
  end
end

local function serve(base)
  local due = redis.call('ZRANGEBYSCORE', base .. ':d', '-inf', now, 'LIMIT', 0, room - looked)
  local before = moved
  for _, member in ipairs(due) do
    looked = looked + 1
    if try(base, hand_over, base, member) then
      redis.call('ZREM', base .. ':d', member)
      moved = moved + 1
    else
      redis.call('ZADD', base .. ':d', later, member)
    end
  end
  if moved > before and redis.call('LLEN', base .. ':bell') == 0 then
    redis.call('LPUSH', base .. ':bell', 1)
  end
  local head = redis.call('ZRANGE', base .. ':d', 0, 0, 'WITHSCORES')
  if head[2] then redis.call('ZADD', KEYS[1], head[2], base) else redis.call('ZREM', KEYS[1], base) end
end

for _, base in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 16)) do
  if not try(base, serve, base) then redis.call('ZADD', KEYS[1], later, base) end
  if looked >= room then break end
end
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local out = {moved, head[2] and math.max(tonumber(head[2]) - now, 0) or -1}
for base, why in pairs(failed) do out[#out + 1] = {base, why} end
return out
