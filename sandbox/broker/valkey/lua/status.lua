-- The living nodes and how many calls no node has taken yet. ARGV: dead_ms.
-- Returns {{node, ms since it was heard of, what it said}, ...}, interactive calls, training calls.
local nodes, waiting = {}, {0, 0}

local function untaken(queue)
  local taken = redis.pcall('XPENDING', queue, GROUP)
  return redis.call('XLEN', queue) - (taken.err and 0 or taken[1])
end

local alive = redis.call('ZRANGEBYSCORE', prefix .. 'nodes', number(now_ms - ARGV[1]), '+inf', 'WITHSCORES')
for at = 1, #alive, 2 do
  nodes[#nodes + 1] = {alive[at], now_ms - alive[at + 1], redis.call('HGET', prefix .. 'announced', alive[at])}
end
for at, priority in ipairs(PRIORITIES) do
  waiting[at] = untaken(prefix .. 'queue:' .. priority)
  for _, node in ipairs(nodes) do
    waiting[at] = waiting[at] + untaken(prefix .. 'node:' .. node[1] .. ':' .. priority)
  end
end
return {nodes, waiting[1], waiting[2]}
