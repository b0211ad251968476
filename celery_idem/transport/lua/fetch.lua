-- Take messages of several lanes into a session's pending list, in the order's own shares.
-- KEYS[1]  leases   KEYS[2..]  lanes, the one to look at first in front
-- ARGV     1 session ('': no lease; what is taken is removed)  2 main step  3 other steps before
--          and after it, most urgent first  4 picks: numbers of lanes, one for each message wanted
--          5 most deliveries (0: no limit)  6 per lane '1' where nobody will ack, else '0'
--          7.. per lane its promise in ms, in deadline order only: the message that is due first
--          is taken, whatever the picks say
-- Returns  {0, lane, step, id, deliveries, requeues, since_ms, waited, envelope, ...}
--          {1}  the session was declared dead: it may take nothing more
local session, main = ARGV[1], ARGV[2]
if session ~= '' and not redis.call('ZSCORE', KEYS[1], session) then return {1} end
local consumer, most = session ~= '' and session or 'nobody', tonumber(ARGV[5])
local out, dry, all_steps = {0}, {}, {}
for step in string.gmatch(ARGV[3], '[^,]+') do all_steps[#all_steps + 1] = step end

local function remove(stream, id)
  redis.call('XACK', stream, 'w', id)
  redis.call('XDEL', stream, id)
end

local function read_group(stream, count)
  local r = redis.pcall('XREADGROUP', 'GROUP', 'w', consumer, 'COUNT', count, 'STREAMS', stream, '>')
  if r and r.err then
    if not string.find(r.err, 'NOGROUP', 1, true) then error(r.err) end
    -- from the beginning: messages may have come before the first worker
    redis.call('XGROUP', 'CREATE', stream, 'w', '0', 'MKSTREAM')
    r = redis.call('XREADGROUP', 'GROUP', 'w', consumer, 'COUNT', count, 'STREAMS', stream, '>')
  end
  return r and r[1][2] or {}
end

local function is_whole(text) return #text < 16 and string.find(text, '^%d+$') ~= nil end

-- Whether all scripts can count with what stands beside the envelope: anybody may have written it.
local function is_countable(v)
  local score = tonumber(v.s or '0')
  return is_whole(v.n) and is_whole(v.r) and (v.t == '' or is_whole(v.t))
    and score ~= nil and score == score
end

-- One entry into the answer, or to the dead ones; 1 when it was taken.
local function hand_out(lane, base, step, e)
  local id, f, v = e[1], e[2], {n = '0', r = '0', t = '', w = '0'}
  for i = 1, #f, 2 do v[f[i]] = f[i + 1] end
  local reason = not (v.m and is_countable(v)) and 'undecodable'
    or (most > 0 and tonumber(v.n) >= most and 'poison')
  if reason then
    redis.call('XADD', base .. ':dead', '*', 'm', v.m or table.concat(f, ' '),
               'n', is_whole(v.n) and v.n or '0', 'reason', reason)
    remove(base .. ':' .. step, id)
    return 0
  end
  if string.sub(ARGV[6], lane, lane) == '1' then remove(base .. ':' .. step, id) end
  local k = #out
  out[k + 1], out[k + 2], out[k + 3], out[k + 4] = lane, step, id, v.n
  out[k + 5], out[k + 6], out[k + 7], out[k + 8] = v.r, v.t, v.w, v.m
  return 1
end

-- What is kept of a scored message, as fields: it has counts only where it came back.
local function fields_of(kept, id)
  local v = {}
  v.w, v.s, v.n, v.r, v.t, v.m = string.match(kept, '^(%d)|([^|]*)|(%d+)|(%d+)|(%d+)|(.*)$')
  if not v.m then
    v.w, v.s, v.m = string.match(kept, '^(%d)|([^|]*)|(.*)$')
    v.t = string.sub(id, 1, 13)
  end
  local fields = {'m', v.m or kept}
  for _, name in ipairs({'w', 's', 't', 'n', 'r'}) do
    if v[name] then fields[#fields + 1], fields[#fields + 2] = name, v[name] end
  end
  return fields
end

-- In a scored lane the best ones are put into the stream as they are taken, and so held like all.
local function draw(base, count)
  local drawn = redis.call('ZPOPMIN', base .. ':z', count)
  for i = 1, #drawn, 2 do
    local id = drawn[i]
    local kept = redis.call('HGET', base .. ':b', id)
    if kept then
      redis.call('XADD', base .. ':' .. main, '*', unpack(fields_of(kept, id)))
      redis.call('HDEL', base .. ':b', id)
    end
    local name = string.sub(id, 18)
    if redis.call('HGET', base .. ':i', name) == id then redis.call('HDEL', base .. ':i', name) end
  end
end

-- Up to count messages of one lane. Wakes the next worker if there is more than that.
local function take(lane, count)
  local base, got, more, steps = KEYS[lane + 1], 0, false, {main}
  local others = {base .. ':z'}
  for _, step in ipairs(all_steps) do
    if step ~= main then others[#others + 1] = base .. ':' .. step end
  end
  if redis.call('EXISTS', unpack(others)) > 0 then steps = all_steps end
  for _, step in ipairs(steps) do
    local stream = base .. ':' .. step
    local scored = step == main and #steps > 1 and redis.call('EXISTS', base .. ':z') == 1
    if scored and got < count then draw(base, count - got) end
    if step == main or redis.call('EXISTS', stream) == 1 then
      local last
      while got < count do
        local entries = read_group(stream, count - got)
        for _, e in ipairs(entries) do
          got, last = got + hand_out(lane, base, step, e), e[1]
        end
        if #entries == 0 then break end
      end
      if got >= count then
        local newest = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
        more = more or scored or (newest ~= nil and newest[1] ~= last)
      end
    end
  end
  if got < count then dry[lane] = true end
  if more and redis.call('LLEN', base .. ':bell') == 0 then
    redis.call('LPUSH', base .. ':bell', 1)
  end
  return got
end

-- When the oldest message that waits in a lane was sent, in ms; nil when nothing waits.
local function oldest(base)
  local found
  for _, step in ipairs(all_steps) do
    local stream, last = base .. ':' .. step, nil
    if redis.call('EXISTS', stream) == 1 then
      for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
        for k = 1, #group, 2 do
          if group[k] == 'last-delivered-id' then last = group[k + 1] end
        end
      end
      local e = redis.call('XRANGE', stream, last and '(' .. last or '-', '+', 'COUNT', 1)[1]
      if e then
        local sent = tonumber(string.match(e[1], '^%d+'))
        for k = 1, #e[2], 2 do
          if e[2][k] == 't' then sent = tonumber(e[2][k + 1]) or sent end
        end
        found = math.min(found or sent, sent)
      end
    end
  end
  local best = redis.call('ZRANGE', base .. ':z', 0, 0)[1]
  if best then
    local sent = tonumber(string.sub(best, 1, 13))
    found = math.min(found or sent, sent)
  end
  return found
end

if ARGV[7] then
  local due, _, count = {}, string.gsub(ARGV[4], '%d+', '')
  local function look(lane)
    local sent = oldest(KEYS[lane + 1])
    due[lane] = sent and sent + tonumber(ARGV[lane + 6])
  end
  for lane = 1, #KEYS - 1 do look(lane) end
  for _ = 1, count do
    local first
    for lane = 1, #KEYS - 1 do
      if due[lane] and (not first or due[lane] < due[first]) then first = lane end
    end
    if not first then break end
    take(first, 1)
    look(first)
  end
  return out
end

local wanted, order, missing = {}, {}, 0
for number in string.gmatch(ARGV[4], '%d+') do
  local lane = tonumber(number)
  order[#order + 1] = lane
  wanted[lane] = (wanted[lane] or 0) + 1
end
for lane = 1, #KEYS - 1 do
  if wanted[lane] then missing = missing + wanted[lane] - take(lane, wanted[lane]) end
end
-- what a lane did not use goes to the others, in their shares
while missing > 0 do
  local before = missing
  for _, lane in ipairs(order) do
    if missing > 0 and not dry[lane] then missing = missing - take(lane, 1) end
  end
  if missing == before then break end
end
for lane = 1, #KEYS - 1 do
  if missing > 0 and not wanted[lane] then missing = missing - take(lane, missing) end
end
return out
