-- Give a node up to `most` calls: those that others lost, then new ones, in the order of its queues.
-- ARGV: node, most, lease_ms, whether to look for lost ones ('1'), most_tries, absent_ms, answer to a call that took
-- most_tries nodes with it; then the node's queues, first come first.
-- Returns for each: {queue, id, tries, ms waited, client, call, request}.
local node, most, lease_ms, look, most_tries, absent_ms, poison = unpack(ARGV, 1, 7)
local taken = {}

local function consider(queue, entry, tries)
  local call = fields(entry)
  local waited_ms = call.waited_ms + now_ms - string.match(entry[1], '^%d+')
  if redis.call('HGET', prefix .. 'calls:' .. call.client, call.call) ~= queue .. ' ' .. entry[1] then
    remove(queue, entry[1])  -- its client is gone, or it waits in another place
  elseif tries > tonumber(most_tries) then
    answer(call.client, call.call, absent_ms, 'unavailable', poison)
  elseif tries == 1 and call.queue_ms ~= '' and waited_ms > tonumber(call.queue_ms) then
    answer(call.client, call.call, absent_ms, 'busy', '')
  else
    taken[#taken + 1] = {queue, entry[1], tries, waited_ms, call.client, call.call, call.request}
  end
end

local function take_lost(queue)
  local from = '0-0'
  repeat
    local found = redis.call('XAUTOCLAIM', queue, GROUP, node, lease_ms, from, 'COUNT', most - #taken)
    from = found[1]
    for _, entry in ipairs(found[2]) do
      consider(queue, entry, pending(queue, entry[1])[4])
    end
  until from == '0-0' or #taken >= tonumber(most)
end

local function take_new(queue)
  while #taken < tonumber(most) do
    local found = redis.call('XREADGROUP', 'GROUP', GROUP, node, 'COUNT', most - #taken, 'STREAMS', queue, '>')
    if not found then
      return
    end
    for _, entry in ipairs(found[1][2]) do
      consider(queue, entry, 1)
    end
  end
end

for at = 8, #ARGV do
  local made = redis.pcall('XGROUP', 'CREATE', ARGV[at], GROUP, '0', 'MKSTREAM')
  if made.err and not string.find(made.err, 'BUSYGROUP') then
    return made
  end
  if look == '1' and #taken < tonumber(most) then
    take_lost(ARGV[at])
  end
  take_new(ARGV[at])
end
return taken
