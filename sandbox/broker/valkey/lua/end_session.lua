-- Have the node of a session let it go. ARGV: session, absent_ms.
local session = prefix .. 'session:' .. ARGV[1]
local node = redis.call('GET', session)
if node then
  redis.call('DEL', session)
  tell(node, ARGV[2], 'kind', 'end', 'call', '', 'body', ARGV[1])
end
