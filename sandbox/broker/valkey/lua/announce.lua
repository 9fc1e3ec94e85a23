-- A node lives. ARGV: node, what it says of itself.
redis.call('ZADD', prefix .. 'nodes', number(now_ms), ARGV[1])
redis.call('HSET', prefix .. 'announced', ARGV[1], ARGV[2])
