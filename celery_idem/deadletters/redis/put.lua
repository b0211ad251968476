-- Store a letter; the same id again is one letter that died once more.
-- KEYS[1]  what all keys begin with; its hash tag keeps them in one slot
-- ARGV     1 id  2 letter as JSON  3 body  4 task  5 lane  6 reason  7 group  8 key
--          9 error type  10 place  11 text that filters search  12 queue  13 '1' when it can be
--          replayed  14 worker  15 token of this call  16 entries of history kept
--          of a letter that brings a history: 17 it, in lines  18 times  19 first and 20 last
--          death in ms  21 its message before it was edited, or empty
-- Returns  position; a call whose reply was lost may be said again: the token tells
local base, id = KEYS[1], ARGV[1]
local letter = base .. 'l:' .. id
local function out(kind, name)  -- of an index, whose name goes when it is empty
  redis.call('ZREM', base .. kind .. ':' .. name, id)
  if redis.call('EXISTS', base .. kind .. ':' .. name) == 0 then
    redis.call('ZREM', base .. 'names:' .. kind, name)
  end
end
local old = redis.call('HMGET', letter, 'tk', 'ta', 'la', 're', 'gr', 'ke', 'po', 'hi', 'qu', 'st')
if old[1] == ARGV[15] then return old[7] end
local t = redis.call('TIME')
local now_us = tonumber(t[1]) * 1000000 + tonumber(t[2])
local now = string.format('%.0f', math.floor(now_us / 1000))
local last = tonumber(redis.call('GET', base .. 'last') or '0')
local position = string.format('%.0f', math.max(now_us, last + 1))
redis.call('SET', base .. 'last', position)
if old[7] then  -- out of the places where it was
  out('task', old[2])
  out('lane', old[3])
  out('queue', old[9])
  redis.call('ZREM', base .. 'reason:' .. old[4], id)
  redis.call('ZREM', base .. 'state:' .. old[10], id)
  redis.call('ZREM', base .. 'group:' .. old[5], id)
  local of_task = base .. 'group-of:' .. old[2] .. '\0' .. old[5]
  redis.call('ZREM', of_task, id)
  if redis.call('EXISTS', of_task) == 0 then
    redis.call('ZREM', base .. 'groups-of:' .. old[2], old[5])
  end
  redis.call('ZREM', base .. 'keys', old[6] .. '\0' .. id)
  if old[5] ~= ARGV[7] and redis.call('EXISTS', base .. 'group:' .. old[5]) == 0 then
    redis.call('DEL', base .. 'fault:' .. old[5])
    redis.call('ZREM', base .. 'groups', old[5])
  end
end
if not old[7] then  -- what a replayed message was before
  local past = redis.call('HMGET', base .. 'sent:' .. id, 'fm', 'ti', 'hi', 'or')
  if past[1] and not ARGV[17] then
    redis.call('HSET', letter, 'fm', past[1], 'ti', past[2])
    if past[4] then redis.call('HSET', letter, 'or', past[4]) end
    old[8] = past[3]
  end
  redis.call('DEL', base .. 'sent:' .. id)
end
local died = cjson.encode({tonumber(now), 'died', ARGV[14], ARGV[6]})
local history = (old[8] and old[8] ~= '') and (old[8] .. '\n' .. died) or died
local _, lines = string.gsub(history, '\n', '')
for _ = 1, lines + 1 - tonumber(ARGV[16]) do
  history = string.sub(history, string.find(history, '\n', 1, true) + 1)
end
local first, died_at, brings = now, now, ARGV[17] and not old[7]
if brings then
  history, first, died_at = ARGV[17], ARGV[19], ARGV[20]
  redis.call('HSET', letter, 'ti', tonumber(ARGV[18]) - 1)
  if ARGV[21] ~= '' then redis.call('HSET', letter, 'or', ARGV[21]) end
end
local state = 'new'
if redis.call('HINCRBY', letter, 'ti', 1) > 1 then state = 'again' end
if redis.call('HEXISTS', letter, 'or') == 1 then state = 'edited' end
if ARGV[13] ~= '1' then state = 'not_replayable' end
redis.call('HSET', letter, 'da', ARGV[2], 'bo', ARGV[3], 'ta', ARGV[4], 'la', ARGV[5],
           're', ARGV[6], 'gr', ARGV[7], 'ke', ARGV[8], 'tx', ARGV[11], 'tk', ARGV[15],
           'lm', died_at, 'po', position, 'hi', history, 'qu', ARGV[12], 'st', state)
redis.call('HSETNX', letter, 'fm', first)
redis.call('HDEL', letter, 'ho', 'un', 'rs')
redis.call('ZADD', base .. 'all', position, id)
for kind, name in pairs({task = ARGV[4], lane = ARGV[5], queue = ARGV[12]}) do
  redis.call('ZADD', base .. kind .. ':' .. name, position, id)
  if name ~= '' then redis.call('ZADD', base .. 'names:' .. kind, 0, name) end
end
redis.call('ZADD', base .. 'reason:' .. ARGV[6], position, id)
redis.call('ZADD', base .. 'state:' .. state, position, id)
redis.call('ZADD', base .. 'group:' .. ARGV[7], position, id)
if ARGV[8] ~= '' then redis.call('ZADD', base .. 'keys', 0, ARGV[8] .. '\0' .. id) end
redis.call('HSET', base .. 'fault:' .. ARGV[7], 'type', ARGV[9], 'place', ARGV[10])
redis.call('ZADD', base .. 'groups', position, ARGV[7])
redis.call('ZADD', base .. 'group-of:' .. ARGV[4] .. '\0' .. ARGV[7], position, id)
redis.call('ZADD', base .. 'groups-of:' .. ARGV[4], position, ARGV[7])
return position
