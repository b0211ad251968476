-- How many messages of a lane wait to be taken (not those held by workers, nor delayed ones).
-- KEYS[1]  the lane
-- ARGV     steps
-- Returns  the number, or -1 when the lane does not exist
local base, ready = KEYS[1], redis.call('ZCARD', KEYS[1] .. ':z')
local known = redis.call('EXISTS', base .. ':d', base .. ':z', base .. ':scored') > 0
for _, step in ipairs(ARGV) do
  local stream = base .. ':' .. step
  if redis.call('EXISTS', stream) == 1 then
    known = true
    local held = redis.pcall('XPENDING', stream, 'w')
    ready = ready + redis.call('XLEN', stream) - (held.err and 0 or held[1])
  end
end
return known and ready or -1
