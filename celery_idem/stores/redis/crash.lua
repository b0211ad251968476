-- Free the claim of a process known to be gone, and count the crash (core/protocol.py: crash).
-- KEYS[1]  the record, a hash
-- ARGV     1 owner
-- Returns  the crashes of the key; -1 when the owner held nothing any more
local r = redis.call('HMGET', KEYS[1], 'st', 'ow')
if r[1] ~= 'r' or r[2] ~= ARGV[1] then return -1 end
redis.call('HSET', KEYS[1], 'st', 'f', 'ow', '', 'lu', 0)
return redis.call('HINCRBY', KEYS[1], 'cr', 1)
