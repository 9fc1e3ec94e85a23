-- A client or node is still there: keep what is its own, throw away what it has read, and look after the dead.
-- ARGV: client, absent_ms, id of the last message that it has, dead_ms, lease_ms.
-- Returns the number of its unanswered calls.
local client, absent_ms, last, dead_ms, lease_ms = unpack(ARGV)
local AT_ONCE = 1000

local function why(node, seen_ms)
  local said = redis.call('HGET', prefix .. 'announced', node)
  local name = said and cjson.decode(said).name or node
  if tonumber(seen_ms) == 0 then
    return 'its node ' .. name .. ' was stopped'
  end
  return 'its node ' .. name .. ' died or cannot be reached'
end

local function lose_cells(node, reason)
  for _, priority in ipairs(PRIORITIES) do
    local queue = prefix .. 'node:' .. node .. ':' .. priority
    local cells = redis.call('XRANGE', queue, '-', '+', 'COUNT', AT_ONCE)
    for _, entry in ipairs(cells) do
      local cell = fields(entry)
      answer(cell.client, cell.call, absent_ms, 'lost', cjson.encode('the session is lost: ' .. reason))
    end
    if #cells < AT_ONCE then
      redis.call('DEL', queue)
    end
  end
end

local function hand_over(node)  -- the calls that it holds, to whoever looks for lost ones next
  local left = 0
  for _, priority in ipairs(PRIORITIES) do
    local queue = prefix .. 'queue:' .. priority
    local held = redis.pcall('XPENDING', queue, GROUP, '-', '+', AT_ONCE, node)
    for _, entry in ipairs(held.err and {} or held) do
      redis.call('XCLAIM', queue, GROUP, node, 0, entry[1], 'IDLE', lease_ms, 'JUSTID')
      left = left + 1
    end
    if left == 0 and not held.err then
      redis.call('XGROUP', 'DELCONSUMER', queue, GROUP, node)
    end
  end
  return left
end

local nodes = prefix .. 'nodes'
local dead = redis.call('ZRANGEBYSCORE', nodes, '-inf', '(' .. number(now_ms - dead_ms), 'WITHSCORES')
for at = 1, #dead, 2 do
  lose_cells(dead[at], why(dead[at], dead[at + 1]))
  if hand_over(dead[at]) == 0 then
    redis.call('ZREM', nodes, dead[at])
    redis.call('HDEL', prefix .. 'announced', dead[at])
  end
end
redis.call('XTRIM', prefix .. 'inbox:' .. client, 'MINID', last)
redis.call('PEXPIRE', prefix .. 'inbox:' .. client, absent_ms)
redis.call('PEXPIRE', prefix .. 'calls:' .. client, absent_ms)
return redis.call('HLEN', prefix .. 'calls:' .. client)
