-- What a lane holds, in one look.
-- KEYS[1]  the lane
-- ARGV     'f' and the steps
-- Returns  {now_ms, ready, held, delayed, set aside, age of the oldest ready in ms (-1: none),
--           longest that one has been held in ms (-1), ms until the next delayed is due (-1)}
local base = KEYS[1]
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local ready, held, oldest, longest = redis.call('ZCARD', base .. ':z'), 0, -1, -1
for _, step in ipairs(ARGV) do
  local stream = base .. ':' .. step
  if redis.call('EXISTS', stream) == 1 then
    local last, pending = '-', 0
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
      for k = 1, #group, 2 do
        if group[k] == 'last-delivered-id' then last = '(' .. group[k + 1] end
        if group[k] == 'pending' then pending = group[k + 1] end
      end
    end
    ready = ready + redis.call('XLEN', stream) - pending
    held = held + pending
    local first = redis.call('XRANGE', stream, last, '+', 'COUNT', 1)[1]
    if first then
      local since = string.match(first[1], '^%d+')
      for k = 1, #first[2], 2 do
        if first[2][k] == 't' then since = tonumber(first[2][k + 1]) or since end
      end
      oldest = math.max(oldest, now - tonumber(since))
    end
    if pending > 0 then
      local entry = redis.call('XPENDING', stream, 'w', '-', '+', 1)[1]
      if entry then longest = math.max(longest, entry[3]) end
    end
  end
end
local due = redis.call('ZRANGE', base .. ':d', 0, 0, 'WITHSCORES')[2]
return {now, ready, held, redis.call('ZCARD', base .. ':d'), redis.call('XLEN', base .. ':dead'),
        oldest, longest, due and math.max(tonumber(due) - now, 0) or -1}
