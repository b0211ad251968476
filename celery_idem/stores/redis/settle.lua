-- Note that a task id's follow-ups were handed on (core/protocol.py: settle).
-- KEYS[1]  the record, a hash
-- ARGV     1 task id
-- Returns  1 noted; 0 the key is not done
if redis.call('HGET', KEYS[1], 'st') ~= 'd' then return 0 end
redis.call('HSET', KEYS[1], 'z:' .. ARGV[1], 1)
return 1
