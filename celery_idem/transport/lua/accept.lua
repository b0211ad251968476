-- Move messages that stock producers sent from kombu's lists to the lane, oldest first.
-- KEYS[1]  the lane   KEYS[2]  due lanes   KEYS[3]  the keepers' bell
-- KEYS[4..]  lists, most urgent first
-- ARGV     1 how many at most  2.. the step of each list
-- Returns  {moved, how many of them are not due yet}
local base, moved, put_off, room = KEYS[1], 0, 0, tonumber(ARGV[1])
local t = redis.call('TIME')
local now_us = tonumber(t[1]) * 1000000 + tonumber(t[2])

-- Days since 1970-01-01 of a date of the Gregorian calendar (Howard Hinnant, days_from_civil).
local function days(y, m, d)
  if m <= 2 then y = y - 1 end
  local era = math.floor(y / 400)
  local of_era = y - era * 400
  local of_year = math.floor((153 * (m + (m > 2 and -3 or 9)) + 2) / 5) + d - 1
  return era * 146097 + of_era * 365 + math.floor(of_era / 4) - math.floor(of_era / 100)
    + of_year - 719468
end

-- The ETA in ms since 1970; nil when there is none, or none that is sure: its worker deals with it.
local function eta_ms(body)
  if not string.find(body, '"eta": ?"') then return nil end
  local known, message = pcall(cjson.decode, body)
  local eta = known and type(message) == 'table' and type(message.headers) == 'table'
    and message.headers.eta
  if type(eta) ~= 'string' then return nil end
  local y, mo, d, h, mi, s, zone = string.match(
    eta, '^(%d%d%d%d)%-(%d%d)%-(%d%d)[T ](%d%d):(%d%d):(%d%d%.?%d*)(.*)$')
  if not y then return nil end
  local sign, zone_h, zone_m = string.match(zone, '^([+-])(%d%d):?(%d%d)$')
  if zone ~= 'Z' and not sign then return nil end
  local offset_s = sign and (tonumber(zone_h) * 3600 + tonumber(zone_m) * 60) or 0
  if sign == '-' then offset_s = -offset_s end
  local date_s = days(tonumber(y), tonumber(mo), tonumber(d)) * 86400
  local of_day_s = tonumber(h) * 3600 + tonumber(mi) * 60 + tonumber(s)
  return math.ceil((date_s + of_day_s - offset_s) * 1000)
end

for i = 4, #KEYS do
  local step = ARGV[i - 2]
  while moved < room do
    local body = redis.call('RPOP', KEYS[i])
    if not body then break end
    local due = eta_ms(body)
    if due and due * 1000 > now_us then
      local head = string.format('%016.0f|%s|0|0|0|', now_us, step)
      redis.call('ZADD', base .. ':d', due, head .. body)
      redis.call('ZADD', KEYS[2], 'LT', due, base)
      put_off = put_off + 1
    else
      redis.call('XADD', base .. ':' .. step, '*', 'm', body)
    end
    moved = moved + 1
  end
end
if moved > put_off and redis.call('LLEN', base .. ':bell') == 0 then
  redis.call('LPUSH', base .. ':bell', 1)
end
if put_off > 0 and redis.call('LLEN', KEYS[3]) == 0 then redis.call('LPUSH', KEYS[3], 1) end
return {moved, put_off}
