-- Move waiting messages of a lane to kombu's lists, in the order in which they would have come.
-- KEYS[1]  the lane   KEYS[2]  due lanes   KEYS[3..]  lists: of the front, then of each step
-- ARGV     1 how many at most  2 main step  3.. 'f' and the steps
-- Returns  {moved (delayed ones too: their ETA is in the message), set aside: no envelope in it}
local base, room, moved, aside = KEYS[1], tonumber(ARGV[1]), 0, 0

local function set_aside(what)
  redis.call('XADD', base .. ':dead', '*', 'm', what, 'reason', 'undecodable')
  aside = aside + 1
end

-- What was taken out to be moved; what there is of it where it holds no envelope.
local function move(envelope, whole)
  if not envelope then return set_aside(whole) end
  redis.call('LPUSH', KEYS[3], envelope)
  moved = moved + 1
end

local function undelivered(stream, count)
  local last = nil
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  for _, group in ipairs(groups.err and {} or groups) do
    for k = 1, #group, 2 do
      if group[k] == 'last-delivered-id' then last = group[k + 1] end
    end
  end
  return redis.call('XRANGE', stream, last and '(' .. last or '-', '+', 'COUNT', count)
end

for i = 3, #ARGV do
  local stream = base .. ':' .. ARGV[i]
  if redis.call('EXISTS', stream) == 1 then
    for _, e in ipairs(undelivered(stream, room - moved - aside + 1)) do
      if moved + aside < room then
        local v = {}
        for k = 1, #e[2], 2 do v[e[2][k]] = e[2][k + 1] end
        if v.m then
          redis.call('LPUSH', KEYS[i], v.m)
          moved = moved + 1
        else
          set_aside(table.concat(e[2], ' '))
        end
        redis.call('XDEL', stream, e[1])
      end
    end
  end
end
while moved + aside < room do
  local best = redis.call('ZPOPMIN', base .. ':z')
  if not best[1] then break end
  local kept = redis.call('HGET', base .. ':b', best[1])
  if kept then
    local again = string.match(kept, '^%d|[^|]*|%d+|%d+|%d+|(.*)$')
    move(again or string.match(kept, '^%d|[^|]*|(.*)$'), kept)
  else
    moved = moved + 1
  end
  redis.call('HDEL', base .. ':b', best[1])
  redis.call('HDEL', base .. ':i', string.sub(best[1], 18))
end
while moved + aside < room do
  local first = redis.call('ZPOPMIN', base .. ':d')
  if not first[1] then
    redis.call('ZREM', KEYS[2], base)
    break
  end
  move(string.match(first[1], '^%d+|[^|]*|%d+|%d+|%d+|(.*)$'), first[1])
end
return {moved, aside}
