-- Ask for the right to run the work of a key now (core/protocol.py: claim).
-- KEYS[1]  the record, a hash
-- ARGV     1 owner  2 lease_ms  3 retention_ms  4 fingerprint  5 task id  6 attempt  7 max_crashes
-- Returns  {'C', fence, crashes, runs, crashed, step name, step value, ...}   claimed
--          {'D', result, settled, same task, task id}                         done
--          {'H', remaining_ms, waiting, task id}                              held
--          {'K', task id}  key reused   {'P', crashes}  poison
--          {'R'}  revoked               {'S', attempt}  superseded
local key, owner, lease, retention = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local print_, task, attempt = ARGV[4], ARGV[5], tonumber(ARGV[6])
local r = redis.call('HMGET', key, 'st', 'ow', 'fe', 'lu', 'fp', 'id', 'at', 'cr', 'rv', 'ns',
                     'a:' .. task, 'rn', 'lm')
local t = redis.call('TIME')
local now_us = tonumber(t[1]) * 1000000 + tonumber(t[2])
local now = math.floor(now_us / 1000)
local state, fence, until_ = r[1] or 'f', tonumber(r[3] or 0), tonumber(r[4] or 0)
local seen_task, seen_attempt = r[6] or '', tonumber(r[7] or 0)
local crashes, runs = tonumber(r[8] or 0), tonumber(r[12] or 0)
local same = task ~= '' and seen_task == task

local newest = task ~= '' and tonumber(r[11] or 0) or 0
if same and state == 'r' and seen_attempt > newest then newest = seen_attempt end
if attempt < newest then return {'S', newest} end

local seen_print = r[5] or ''
if state ~= 'f' and seen_print ~= '' and print_ ~= '' and seen_print ~= print_
   and not (same and (state == 'w' or attempt > seen_attempt)) then
  return {'K', seen_task}
end
if state == 'd' then
  local done = redis.call('HMGET', key, 'rs', 'z:' .. task)
  return {'D', done[1] or '', done[2] and 1 or 0, same and 1 or 0, seen_task}
end
if r[9] then return {'R'} end

local function granted(fence_, crashed)
  local out = {'C', string.format('%.0f', fence_), crashes, runs, crashed}
  if r[10] then
    local all = redis.call('HGETALL', key)
    for i = 1, #all, 2 do
      if string.sub(all[i], 1, 2) == 's:' then
        out[#out + 1] = string.sub(all[i], 3)
        out[#out + 1] = all[i + 1]
      end
    end
  end
  return out
end

local crashed = 0
if state == 'r' and r[2] == owner then
  redis.call('HSET', key, 'lu', string.format('%.0f', now + lease), 'lm', lease, 'rt', retention)
  redis.call('PEXPIRE', key, math.max(retention, lease))
  return granted(fence, 0)
end
if state == 'r' and not (same and attempt > seen_attempt and crashes == 0) then
  if until_ > now then
    local longest = now + tonumber(r[13] or lease)
    if until_ > longest then -- given by a clock that has gone back: it begins anew
      until_ = longest
      redis.call('HSET', key, 'lu', string.format('%.0f', until_))
    end
    return {'H', until_ - now, 0, seen_task}
  end
  crashed = 1
  crashes = crashes + 1
end
if state == 'w' and not same and until_ > now then return {'H', until_ - now, 1, seen_task} end
if crashes >= tonumber(ARGV[7]) then
  if crashed == 1 then
    redis.call('HSET', key, 'st', 'f', 'ow', '', 'lu', 0, 'cr', crashes)
  end
  redis.call('HSET', key, 'rt', retention)
  redis.call('PEXPIRE', key, retention)
  return {'P', crashes}
end

runs = runs + 1
fence = math.max(fence + 1, now_us)
redis.call('HSET', key, 'st', 'r', 'ow', owner, 'fe', string.format('%.0f', fence),
           'lu', string.format('%.0f', now + lease), 'lm', lease, 'rt', retention,
           'fp', print_, 'id', task, 'at', attempt, 'rn', runs)
if crashed == 1 then redis.call('HSET', key, 'cr', crashes) end
if task ~= '' and attempt > 0 then redis.call('HSET', key, 'a:' .. task, attempt) end
if not r[1] then redis.call('HSETNX', key, 'ct', string.format('%.0f', now)) end
redis.call('PEXPIRE', key, math.max(retention, lease))
return granted(fence, crashed)
