-- A node is gone: whoever looks after the dead next does the rest. ARGV: node.
if redis.call('HEXISTS', prefix .. 'announced', ARGV[1]) == 1 then
  redis.call('ZADD', prefix .. 'nodes', 0, ARGV[1])
end
