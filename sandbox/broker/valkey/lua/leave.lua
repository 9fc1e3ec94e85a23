-- A node is gone: whoever looks after the dead next does the rest. ARGV: node, lease_ms.
local node, lease_ms = ARGV[1], tonumber(ARGV[2])
if redis.call('HEXISTS', prefix .. 'announced', node) == 1 then
  redis.call('ZADD', prefix .. 'nodes', 0, node)
end
-- It may have been given calls in a reply that it did not wait for: like `give_back`, as if it had never had them.
for _, priority in ipairs(PRIORITIES) do
  local queue = prefix .. 'queue:' .. priority
  local held = redis.pcall('XPENDING', queue, GROUP, '-', '+', 1000, node)
  for _, entry in ipairs(held.err and {} or held) do
    if entry[3] < lease_ms then  -- else it gave it back already
      redis.call('XCLAIM', queue, GROUP, node, 0, entry[1], 'IDLE', lease_ms, 'RETRYCOUNT', entry[4] - 1, 'JUSTID')
    end
  end
end
