-- An operator frees a key that isn't done (core/protocol.py: free).
-- KEYS[1]  the record, a hash
-- ARGV     none
-- Returns  1 freed; 0 there is no such record, or it is done
local state = redis.call('HGET', KEYS[1], 'st')
if not state or state == 'd' then return 0 end
redis.call('HSET', KEYS[1], 'st', 'f', 'ow', '', 'lu', 0, 'cr', 0)
redis.call('HDEL', KEYS[1], 'rv')
return 1
