-- Calls that a node took and does not run: for whoever looks for lost ones next, as if it had never had them.
-- ARGV: node, absent_ms, lease_ms; then for each: client, call, queue, id, tries, answer if it is a session's cell or ''.
local node, absent_ms, lease_ms = unpack(ARGV, 1, 3)
for at = 4, #ARGV, 6 do
  local client, call, queue, id, tries, lost = unpack(ARGV, at, at + 5)
  if lost ~= '' then
    answer(client, call, absent_ms, 'lost', lost)
  else
    redis.call('XCLAIM', queue, GROUP, node, 0, id, 'IDLE', lease_ms, 'RETRYCOUNT', tries - 1, 'JUSTID')
  end
end
