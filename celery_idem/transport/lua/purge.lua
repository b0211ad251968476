-- Remove what waits in a lane, delayed messages too; what workers hold is theirs.
-- KEYS[1]  the lane   KEYS[2]  due lanes
-- ARGV     1 'all': the whole lane goes, with what workers hold  2.. steps
-- Returns  how many waiting messages were removed
local base, removed = KEYS[1], redis.call('ZCARD', KEYS[1] .. ':d')
removed = removed + redis.call('ZCARD', base .. ':z')
redis.call('DEL', base .. ':d', base .. ':bell', base .. ':z', base .. ':b', base .. ':i')
if ARGV[1] == 'all' then redis.call('DEL', base .. ':scored') end
redis.call('ZREM', KEYS[2], base)
for i = 2, #ARGV do
  local stream = base .. ':' .. ARGV[i]
  if redis.call('EXISTS', stream) == 1 then
    local held = redis.pcall('XPENDING', stream, 'w')
    if ARGV[1] == 'all' or held.err or held[1] == 0 then
      removed = removed + redis.call('XLEN', stream) - (held.err and 0 or held[1])
      if ARGV[1] == 'all' then redis.call('DEL', stream) else redis.call('XTRIM', stream, 'MAXLEN', 0) end
    else
      local last = '0'
      for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
        for k = 1, #group, 2 do
          if group[k] == 'last-delivered-id' then last = group[k + 1] end
        end
      end
      repeat
        local ids = {}
        for _, e in ipairs(redis.call('XRANGE', stream, '(' .. last, '+', 'COUNT', 500)) do
          ids[#ids + 1] = e[1]
        end
        if #ids > 0 then redis.call('XDEL', stream, unpack(ids)) end
        removed = removed + #ids
      until #ids == 0
    end
  end
end
return removed
