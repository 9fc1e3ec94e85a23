-- Comes before each of the other scripts: where things are, and how a call ends.
--
-- <prefix>calls:<client>          hash, one field per unanswered call: the queue and the id of its entry there
-- <prefix>inbox:<client or node>  stream of what it is to be told: answers, calls to cancel, sessions to end
-- <prefix>queue:<priority>        stream of calls for any node
-- <prefix>node:<node>:<priority>  stream of cells for one node
-- <prefix>session:<session>       the node that it lives on
-- <prefix>nodes                   sorted set: when each node was last heard of, by this server's clock
-- <prefix>announced               hash: what each node said of itself
-- <prefix>since                   when this data began, which is later than we were started if Valkey lost its data
--
-- A call is unanswered exactly as long as its field in calls:<client> is there: whoever deletes the field answers.
local prefix, GROUP = KEYS[1], 'nodes'
local PRIORITIES = {'interactive', 'training'}

local function number(value)  -- as Valkey reads it: Lua would write 1.7e+12
  return string.format('%.0f', value)
end

local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local since_ms = tonumber(redis.call('GET', prefix .. 'since'))
if not since_ms then
  since_ms = now_ms
  redis.call('SET', prefix .. 'since', number(now_ms))
end

local function fields(entry)  -- {id, {name, value, ...}} as a table by name
  local named = {}
  for at = 1, #entry[2], 2 do
    named[entry[2][at]] = entry[2][at + 1]
  end
  return named
end

local function split(place)  -- queue and id of an entry
  return string.match(place, '^(.*) (%S+)$')
end

local function pending(queue, id)  -- {id, node, idle ms, times given out} of a call that a node holds
  local found = redis.pcall('XPENDING', queue, GROUP, id, id, 1)
  return not found.err and found[1] or nil
end

local function remove(queue, id)
  redis.call('XACK', queue, GROUP, id)
  redis.call('XDEL', queue, id)
end

local function tell(whom, absent_ms, ...)
  redis.call('XADD', prefix .. 'inbox:' .. whom, '*', ...)
  redis.call('PEXPIRE', prefix .. 'inbox:' .. whom, absent_ms)
end

local function answer(client, call, absent_ms, kind, body)  -- the only way in which a call is answered
  local place = redis.call('HGET', prefix .. 'calls:' .. client, call)
  if place then
    redis.call('HDEL', prefix .. 'calls:' .. client, call)
    remove(split(place))
    tell(client, absent_ms, 'kind', kind, 'call', call, 'body', body)
  end
end
