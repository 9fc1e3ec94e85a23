-- Answer calls. An answer that nobody waits for, or that came already, is dropped.
-- ARGV: absent_ms; then for each: client, call, queue, id, kind, body.
for at = 2, #ARGV, 6 do
  local client, call, queue, id, kind, body = unpack(ARGV, at, at + 5)
  answer(client, call, ARGV[1], kind, body)
  remove(queue, id)
end
