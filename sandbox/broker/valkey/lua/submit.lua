-- Queue calls, each once however often it is sent.
-- ARGV: client, absent_ms, dead_ms, session_ms, most_queued; then for each call: its name, priority, session or '',
-- cell, node or '', whether that node is a proposal ('1') or where the session lived ('0'), ms waited so far,
-- longest wait in ms or '', the request.
-- Returns for each: {what became of it, node}; 'queued', 'full', 'nowhere' (no node for it now), 'lost' or 'unknown'.
local client, absent_ms, dead_ms, session_ms, most_queued = unpack(ARGV, 1, 5)
local calls = prefix .. 'calls:' .. client

local function lives(node)
  local seen_ms = redis.call('ZSCORE', prefix .. 'nodes', node)
  return seen_ms and now_ms - seen_ms <= tonumber(dead_ms)
end

local function home(session, cell, node, proposed)  -- where the cell has to run, or why it cannot
  local bound = redis.call('GET', prefix .. 'session:' .. session)
  if not bound and node == '' then
    return nil, cell == '0' and 'nowhere' or 'unknown'
  end
  local place = bound or node
  if lives(place) then
    redis.call('SET', prefix .. 'session:' .. session, place, 'PX', session_ms)
    return place
  end
  local may_come_back = not bound and now_ms - since_ms <= tonumber(dead_ms)  -- after Valkey lost its data
  return nil, (proposed == '1' and not bound or may_come_back) and 'nowhere' or 'lost'
end

local function submit(call, priority, session, cell, node, proposed, waited_ms, queue_ms, request)
  if redis.call('HEXISTS', calls, call) == 1 then
    return {'queued', node}
  end
  local queue, place, why = prefix .. 'queue:' .. priority, '', nil
  if session ~= '' then
    place, why = home(session, cell, node, proposed)
    if not place then
      return {why, ''}
    end
    queue = prefix .. 'node:' .. place .. ':' .. priority
  end
  if redis.call('XLEN', queue) >= tonumber(most_queued) then
    return {'full', ''}
  end
  local id = redis.call('XADD', queue, '*', 'client', client, 'call', call, 'waited_ms', waited_ms,
    'queue_ms', queue_ms, 'request', request)
  redis.call('HSET', calls, call, queue .. ' ' .. id)
  return {'queued', place}
end

local became = {}
for at = 6, #ARGV, 9 do
  became[#became + 1] = submit(unpack(ARGV, at, at + 8))
end
redis.call('PEXPIRE', calls, absent_ms)
return became
