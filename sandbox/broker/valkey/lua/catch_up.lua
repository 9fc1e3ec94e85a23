-- What a client missed. ARGV: client, absent_ms, id of the last message that it has, the `since` that this id is of.
-- Returns the present `since`, the messages after that one (all, if Valkey lost its data), the unanswered calls.
local client, absent_ms, last, since = unpack(ARGV)
local inbox, calls = prefix .. 'inbox:' .. client, prefix .. 'calls:' .. client
local after = since == number(since_ms) and '(' .. last or '-'
redis.call('PEXPIRE', inbox, absent_ms)
redis.call('PEXPIRE', calls, absent_ms)
return {number(since_ms), redis.call('XRANGE', inbox, after, '+'), redis.call('HKEYS', calls)}
