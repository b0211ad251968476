-- Add to a letter's history; with a message, replace the one that would be sent.
-- KEYS[1]  what all keys begin with
-- ARGV     1 id  2 what  3 by  4 detail  5 time in ms, 0: now  6 entries kept
--          for an edit: 7 the letter as JSON  8 its body  9 its message as it is now  10 key
--          11 text that filters search
-- Returns  1; 0 when there is no such letter
local letter = KEYS[1] .. 'l:' .. ARGV[1]
local history = redis.call('HGET', letter, 'hi')
if not history then return 0 end
local at = tonumber(ARGV[5])
if at == 0 then
  local t = redis.call('TIME')
  at = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end
local line = cjson.encode({at, ARGV[2], ARGV[3], ARGV[4]})
local last = string.match(history, '[^\n]*$')
if last ~= line then  -- said twice: one entry
  history = history == '' and line or (history .. '\n' .. line)
  local _, lines = string.gsub(history, '\n', '')
  for _ = 1, lines + 1 - tonumber(ARGV[6]) do
    history = string.sub(history, string.find(history, '\n', 1, true) + 1)
  end
  redis.call('HSET', letter, 'hi', history)
end
if ARGV[7] then
  local key = redis.call('HGET', letter, 'ke')
  redis.call('ZREM', KEYS[1] .. 'keys', key .. '\0' .. ARGV[1])
  if ARGV[10] ~= '' then redis.call('ZADD', KEYS[1] .. 'keys', 0, ARGV[10] .. '\0' .. ARGV[1]) end
  redis.call('HSET', letter, 'da', ARGV[7], 'bo', ARGV[8], 'ke', ARGV[10], 'tx', ARGV[11])
  redis.call('HSETNX', letter, 'or', ARGV[9])
  local r = redis.call('HMGET', letter, 'st', 'rs', 'po')
  if r[1] == 'replaying' then
    if r[2] ~= 'not_replayable' then redis.call('HSET', letter, 'rs', 'edited') end
  elseif r[1] ~= 'not_replayable' then
    redis.call('HSET', letter, 'st', 'edited')
    redis.call('ZREM', KEYS[1] .. 'state:' .. r[1], ARGV[1])
    redis.call('ZADD', KEYS[1] .. 'state:edited', r[3], ARGV[1])
  end
end
return 1
