-- Put messages back to the front of their lane at once: this session will not run them.
-- KEYS[1]  the lane
-- ARGV     1 session  2 'these': give back the entries that follow;
--          'others': give back what the session holds of this lane, but not these
--          3 only what was handed over longer ago than these ms  4.. pairs of step and id
-- Returns  how many were given back
local base, session, given = KEYS[1], ARGV[1], 0

local function give_back(stream, step, id)
  local held = redis.pcall('XPENDING', stream, 'w', id, id, 1, session)
  if held.err or #held == 0 then return end
  local e = redis.call('XRANGE', stream, id, id)[1]
  redis.call('XACK', stream, 'w', id)
  if e then
    local v = {n = '0', r = '0', w = '0', t = string.match(id, '^%d+')}
    for i = 1, #e[2], 2 do v[e[2][i]] = e[2][i + 1] end
    redis.call('XADD', base .. ':f', '*', 'm', v.m, 'n', tonumber(v.n) + 1, 'r', v.r, 't', v.t,
               'w', v.w, unpack(v.s and {'s', v.s} or {}))
    given = given + 1
  end
  redis.call('XDEL', stream, id)
  if step ~= '0' and redis.call('XLEN', stream) == 0 then redis.call('DEL', stream) end
end

local named = {}
for i = 4, #ARGV, 2 do
  if ARGV[2] == 'these' then
    give_back(base .. ':' .. ARGV[i], ARGV[i], ARGV[i + 1])
  else
    named[ARGV[i] .. ' ' .. ARGV[i + 1]] = true
  end
end
if ARGV[2] == 'others' then
  for _, step in ipairs({'f', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'}) do
    local stream = base .. ':' .. step
    local from, held = '-', nil
    repeat
      held = redis.pcall('XPENDING', stream, 'w', 'IDLE', ARGV[3], from, '+', 1000, session)
      -- of a stream that there is not: an error, and so of no length
      for _, entry in ipairs(held) do
        if not named[step .. ' ' .. entry[1]] then give_back(stream, step, entry[1]) end
        from = '(' .. entry[1]
      end
    until #held < 1000
  end
end
if given > 0 and redis.call('LLEN', base .. ':bell') == 0 then
  redis.call('LPUSH', base .. ':bell', 1)
end
return given
