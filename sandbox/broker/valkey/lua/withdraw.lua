-- Forget calls of a client; a node that runs one is told to stop it.
-- ARGV: client, absent_ms, '1' to spare those that a node took already; then the calls.
-- Returns for each whether it was withdrawn.
local client, absent_ms, spare = unpack(ARGV, 1, 3)
local calls = prefix .. 'calls:' .. client

local function withdraw(call)
  local place = redis.call('HGET', calls, call)
  if not place then
    return 0
  end
  local queue, id = split(place)
  local taken = pending(queue, id)
  if taken and spare == '1' then
    return 0
  end
  redis.call('HDEL', calls, call)
  remove(queue, id)
  if taken then
    tell(taken[2], absent_ms, 'kind', 'cancel', 'call', call, 'body', '')
  end
  return 1
end

local withdrawn = {}
for at = 4, #ARGV do
  withdrawn[#withdrawn + 1] = withdraw(ARGV[at])
end
return withdrawn
