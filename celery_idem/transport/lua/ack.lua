-- Remove messages for good. What was taken over meanwhile has another id, so it is not touched.
-- KEYS[1]  leases   KEYS[2..]  streams
-- ARGV     1 session  then per stream: '1' if it may go when it is empty, how many ids, ids
-- Returns  {alive, number of a stream, stale id of it, ...}
local out, at = {redis.call('ZSCORE', KEYS[1], ARGV[1]) and 1 or 0}, 2
for number = 2, #KEYS do
  local stream, count = KEYS[number], tonumber(ARGV[at + 1])
  for i = at + 2, at + 1 + count do
    local acked = redis.pcall('XACK', stream, 'w', ARGV[i])
    -- a server that refuses for now has acked nothing: the sender tries again
    if type(acked) == 'table' and not string.find(acked.err, '^WRONGTYPE') then return acked end
    if acked == 1 then
      redis.call('XDEL', stream, ARGV[i])
    else
      out[#out + 1], out[#out + 2] = number - 1, ARGV[i]
    end
  end
  if ARGV[at] == '1' and redis.call('XLEN', stream) == 0 then redis.call('DEL', stream) end
  at = at + 2 + count
end
return out
