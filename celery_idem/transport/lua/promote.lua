-- Hand what is due from the waiting set to its lane's stream.
-- KEYS[1]  due lanes
-- ARGV     1 how many messages at most
-- Returns  {moved, ms until the next one is due (-1: none; 0: more are due now)}
-- a full server refuses a script whose first write could need memory: this one never does
redis.call('ZREM', KEYS[1], '')
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)

local function place_by_score(base, score, body)
  local known, message = pcall(cjson.decode, body)
  local headers = known and type(message) == 'table' and message.headers
  local name = type(headers) == 'table' and headers.id or 'unnamed'
  local id = string.format('%s%06d:%s', t[1], t[2], name)
  local rate = redis.call('GET', base .. ':scored') or '0'
  while redis.call('HEXISTS', base .. ':b', id) == 1 do id = id .. '+' end
  redis.call('ZADD', base .. ':z', tonumber(score) + tonumber(rate) * tonumber(t[1]), id)
  redis.call('HSET', base .. ':b', id, '1|' .. score .. '|' .. body)
  redis.call('HSET', base .. ':i', name, id)
end

local room, moved = tonumber(ARGV[1]), 0
local lanes = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 16)
for _, base in ipairs(lanes) do
  local due = redis.call('ZRANGEBYSCORE', base .. ':d', '-inf', now, 'LIMIT', 0, room - moved)
  for _, member in ipairs(due) do
    local step, n, r, since, body = string.match(member, '^%d+|([^|]*)|(%d+)|(%d+)|(%d+)|(.*)$')
    if string.sub(step, 1, 1) == 's' then
      place_by_score(base, string.sub(step, 2), body)
    elseif n == '0' then
      redis.call('XADD', base .. ':' .. step, '*', 'm', body, 'w', '1')
    else
      redis.call('XADD', base .. ':' .. step, '*', 'm', body, 'n', n, 'r', r, 't', since, 'w', '1')
    end
    redis.call('ZREM', base .. ':d', member)
  end
  moved = moved + #due
  if #due > 0 and redis.call('LLEN', base .. ':bell') == 0 then
    redis.call('LPUSH', base .. ':bell', 1)
  end
  local head = redis.call('ZRANGE', base .. ':d', 0, 0, 'WITHSCORES')
  if head[2] then redis.call('ZADD', KEYS[1], head[2], base) else redis.call('ZREM', KEYS[1], base) end
  if moved >= room then break end
end
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if not head[2] then return {moved, -1} end
return {moved, math.max(tonumber(head[2]) - now, 0)}
