-- A node still runs these calls. ARGV: node, dead_ms; then for each: client, call, queue, id.
-- Returns the places in the list, from 0, of those that nobody wants any more.
local node, dead_ms = ARGV[1], tonumber(ARGV[2])
local unwanted = {}
for at = 3, #ARGV, 4 do
  local client, call, queue, id = unpack(ARGV, at, at + 3)
  local place = redis.call('HGET', prefix .. 'calls:' .. client, call)
  if place == queue .. ' ' .. id then
    redis.call('XCLAIM', queue, GROUP, node, 0, id, 'JUSTID')
  elseif not place and now_ms - since_ms > dead_ms then  -- else clients have yet to submit again what Valkey lost
    unwanted[#unwanted + 1] = (at - 3) / 4
  end
end
return unwanted
