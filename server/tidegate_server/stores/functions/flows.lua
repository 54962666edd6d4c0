#!lua name=tidegate_flows_VERSION
--[[
The flow guard's rules (§8 of the contract) as functions of the server: one call a hop, one atomic step. They are those
of core/flow, and the contract suite of all flow stores runs on both.

A flow is one hash, so all of it lies in one slot:
  start timeout keep            times, nanoseconds since the epoch by this server's clock
  max_depth max_fan_out max_tokens
  used                          the exact sum of all charges
  count next open deepest refusals
  h:<hop id>                    a hop, a JSON array (see HOP)
  r:<request id>                the hop that it stands for
  t:<request id>                a record of tokens: [hop id, tokens]
  o:<agent>                     the open hops into that agent: [[depth, order, hop id], …]
  d:<depth>                     how many hops are that deep

Numbers above 2^53 (times, tokens) are decimal text, and pairs {hi, lo} to the base 10^15 where they are counted with:
exact far beyond 2^63.

Every function takes one key, the flow's, and first of all: namespace, trace id, origin (whose change it is, so that
whoever made it is not told of it again), the time (empty for this server's clock, nanoseconds for a test's own), and the
channel on which changes are told.
]]

local BASE = 1e15
local GRACE_MS = 1000 -- keys outlive their flow by this much; the flow's own time decides, not the key's

-- Places in a hop's array.
local HOP = {
  id = 1, parent = 2, caller = 3, target = 4, chain = 5, order = 6, start = 7, reserve = 8, request = 9,
  left_depth = 10, left_fan_out = 11, left_tokens = 12, left_time = 13, recorded = 14, finish = 15, success = 16,
  claims = 17, children = 18, depth = 19,
}

local META = {'start', 'timeout', 'keep', 'max_depth', 'max_fan_out', 'max_tokens', 'used', 'count', 'next', 'open',
  'deepest', 'refusals'}
local IS_BIG = {start = true, timeout = true, keep = true, max_tokens = true, used = true}

-- Large numbers ------------------------------------------------------------------------------------------------------

local function big(text)
  local length = #text
  if length <= 15 then return {0, tonumber(text)} end
  return {tonumber(string.sub(text, 1, length - 15)), tonumber(string.sub(text, length - 14))}
end

local function text(number)
  if number[1] == 0 then return string.format('%.0f', number[2]) end
  return string.format('%.0f%015.0f', number[1], number[2])
end

local function less(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  return a[2] < b[2]
end

local function plus(a, b)
  local hi, lo = a[1] + b[1], a[2] + b[2]
  if lo >= BASE then return {hi + 1, lo - BASE} end
  return {hi, lo}
end

-- a - b, and 0 where that would be negative.
local function minus(a, b)
  if less(a, b) then return {0, 0} end
  local hi, lo = a[1] - b[1], a[2] - b[2]
  if lo < 0 then return {hi - 1, lo + BASE} end
  return {hi, lo}
end

local function larger(a, b)
  if less(a, b) then return b end
  return a
end

local MAX = {9223, 372036854775807} -- the largest int64, where sums saturate

local function saturated(number)
  if less(MAX, number) then return MAX end
  return number
end

local function clock(given)
  if given ~= '' then return big(given) end
  local time = redis.call('TIME')
  return big(time[1] .. string.format('%06d', time[2]) .. '000')
end

-- Flows and hops -----------------------------------------------------------------------------------------------------

local function open_flow(key, now)
  local values = redis.call('HMGET', key, unpack(META))
  if not values[1] then return nil end
  local flow = {}
  for i, name in ipairs(META) do
    if IS_BIG[name] then flow[name] = big(values[i]) else flow[name] = tonumber(values[i]) end
  end
  flow.ends = plus(flow.start, flow.timeout)
  if less(flow.keep, now) then return nil end
  return flow
end

local function write_flow(key, flow)
  local values = {}
  for _, name in ipairs(META) do
    values[#values + 1] = name
    if IS_BIG[name] then values[#values + 1] = text(flow[name]) else values[#values + 1] = flow[name] end
  end
  redis.call('HSET', key, unpack(values))
end

local function hop_of(key, id)
  local found = redis.call('HGET', key, 'h:' .. id)
  if not found then return nil end
  return cjson.decode(found)
end

local function write_hop(key, hop)
  local packed = cjson.encode(hop)
  redis.call('HSET', key, 'h:' .. hop[HOP.id], packed)
  return packed
end

local function is_open(hop)
  return hop[HOP.finish] == ''
end

local function charge(hop)
  local recorded = big(hop[HOP.recorded])
  if not is_open(hop) then return recorded end
  return larger(big(hop[HOP.reserve]), recorded)
end

local function open_into(key, agent)
  local found = redis.call('HGET', key, 'o:' .. agent)
  if not found then return {} end
  return cjson.decode(found)
end

local function add_open(key, hop)
  local list = open_into(key, hop[HOP.target])
  list[#list + 1] = {hop[HOP.depth], hop[HOP.order], hop[HOP.id]}
  redis.call('HSET', key, 'o:' .. hop[HOP.target], cjson.encode(list))
end

local function remove_open(key, hop)
  local kept = {}
  for _, entry in ipairs(open_into(key, hop[HOP.target])) do
    if entry[3] ~= hop[HOP.id] then kept[#kept + 1] = entry end
  end
  if #kept == 0 then
    redis.call('HDEL', key, 'o:' .. hop[HOP.target])
  else
    redis.call('HSET', key, 'o:' .. hop[HOP.target], cjson.encode(kept))
  end
end

-- Put a hop in the place of its older self, and keep the sum. `before` is what that was charged.
local function settle(key, flow, hop, before)
  flow.used = plus(minus(flow.used, before), charge(hop))
  return write_hop(key, hop)
end

local function close(key, flow, hop, now, success)
  local before = charge(hop)
  hop[HOP.finish] = text(now)
  hop[HOP.success] = success
  flow.open = flow.open - 1
  remove_open(key, hop)
  return settle(key, flow, hop, before)
end

local function left(flow, depth, now)
  return {
    string.format('%.0f', math.max(0, flow.max_depth - depth)),
    string.format('%.0f', math.max(0, flow.max_fan_out - flow.count)),
    text(minus(flow.max_tokens, flow.used)),
    text(minus(flow.ends, now)),
  }
end

local function tell(ask, kind, packed)
  redis.call('PUBLISH', ask.channel, cjson.encode({ask.origin, kind, ask.namespace, ask.trace, packed or ''}))
end

local function expire(key, flow)
  local milliseconds = math.ceil((flow.keep[1] * BASE + flow.keep[2]) / 1e6)
  redis.call('PEXPIREAT', key, string.format('%.0f', milliseconds + GRACE_MS))
end

-- The rules ----------------------------------------------------------------------------------------------------------

-- The hop from which `agent` calls: the signed one; without a member the deepest open one, of equals the last entered.
local function find_parent(key, ask)
  if ask.proof == 'signed' then return hop_of(key, ask.signed_hop) end
  if ask.proof == 'bad' then return nil end
  local best = nil
  for _, entry in ipairs(open_into(key, ask.caller)) do
    if not best or entry[1] > best[1] or (entry[1] == best[1] and entry[2] > best[2]) then best = entry end
  end
  if not best then return nil end
  return hop_of(key, best[3])
end

local function signed_time_is_over(ask, now)
  if ask.caller == '' or ask.proof ~= 'signed' then return false end
  return less(plus(big(ask.signed_start), big(ask.signed_timeout)), now)
end

local function unknown_or_timeout(ask, flow, parent, now)
  if ask.caller ~= '' and not parent and not signed_time_is_over(ask, now) then return 'FLOW_UNKNOWN' end
  local over
  if flow and (parent or ask.caller == '') then over = less(flow.ends, now) else over = signed_time_is_over(ask, now) end
  if over then return 'FLOW_TIMEOUT' end
  return nil
end

-- What stands against a hop, or (without a target) against an inference request of the hop `parent`.
local function first_refusal(ask, flow, parent, now)
  local reason = unknown_or_timeout(ask, flow, parent, now)
  if reason then return reason end
  if not flow then return 'FLOW_UNKNOWN' end
  if parent and not is_open(parent) then return 'FLOW_HOP_CLOSED' end
  local used, reserve = flow.used, {0, 0}
  if ask.target then
    local depth = parent and parent[HOP.depth] or 0
    if depth + 1 > flow.max_depth then return 'FLOW_DEPTH_EXCEEDED' end
    for _, agent in ipairs(parent and parent[HOP.chain] or {}) do
      if agent == ask.target then return 'FLOW_CYCLE_DETECTED' end
    end
    if flow.count + 1 > flow.max_fan_out then return 'FLOW_FAN_OUT_EXCEEDED' end
    reserve = big(ask.reserve)
  elseif parent then
    used = minus(used, minus(charge(parent), big(parent[HOP.recorded])))
  end
  if not less(used, flow.max_tokens) or less(flow.max_tokens, plus(used, reserve)) then return 'FLOW_TOKENS_EXHAUSTED' end
  return nil
end

local function judge_repeat(ask, flow, parent, hop, now)
  local parent_id = parent and parent[HOP.id] or ''
  local proved = ask.caller == '' or parent
  local same = parent_id == hop[HOP.parent] and ask.caller == hop[HOP.caller] and ask.target == hop[HOP.target]
  if proved and not same then return 'misused' end
  local reason = unknown_or_timeout(ask, flow, parent, now)
  if not reason and not is_open(hop) then reason = 'repeat_closed' end
  return reason
end

local function fresh_flow(ask, now)
  local flow = {
    start = now, timeout = big(ask.timeout), max_depth = tonumber(ask.max_depth),
    max_fan_out = tonumber(ask.max_fan_out), max_tokens = big(ask.max_tokens),
    used = {0, 0}, count = 0, next = 0, open = 0, deepest = 0, refusals = 0, is_fresh = true,
  }
  flow.ends = plus(flow.start, flow.timeout)
  flow.keep = flow.ends
  return flow
end

-- Where the hop would stand, and what stands against it: flow, parent, repeat, reason.
local function judge(key, ask, now)
  local flow = open_flow(key, now)
  local known = nil
  if flow and ask.request ~= '' then
    local id = redis.call('HGET', key, 'r:' .. ask.request)
    if id then known = hop_of(key, id) end
  end
  if ask.caller == '' and not known and (not flow or (less(flow.ends, now) and flow.open == 0)) then
    flow = fresh_flow(ask, now)
  end
  local parent = nil
  if flow and ask.caller ~= '' then parent = find_parent(key, ask) end
  if known and ask.proof == 'none' and ask.caller == known[HOP.caller] then
    -- The first attempt found its parent by search. That search may end elsewhere by now; its result stands.
    parent = hop_of(key, known[HOP.parent])
  end
  if known then return flow, parent, known, judge_repeat(ask, flow, parent, known, now) end
  return flow, parent, nil, first_refusal(ask, flow, parent, now)
end

local function common(argv)
  return {namespace = argv[1], trace = argv[2], origin = argv[3], clock = argv[4], channel = argv[5]}
end

local function proof(ask, argv, from)
  ask.proof, ask.signed_hop, ask.signed_start, ask.signed_timeout = unpack(argv, from, from + 3)
  ask.caller = argv[from + 4]
end

local function hop_ask(argv)
  local ask = common(argv)
  proof(ask, argv, 6)
  ask.target, ask.id, ask.max_depth, ask.max_fan_out, ask.max_tokens, ask.timeout, ask.state_ttl, ask.request, ask.reserve =
    unpack(argv, 11, 19)
  return ask
end

-- A refusal with what its sentence needs. `false` in a reply is nil for the client.
local function refused(reason, flow, parent, now)
  local shown = false
  if flow then
    shown = {text(flow.start), text(flow.timeout), flow.max_depth, flow.max_fan_out, text(flow.max_tokens),
      text(flow.used), flow.count}
  end
  return {'refused', reason, text(now), shown, parent and cjson.encode(parent) or false}
end

-- The functions ------------------------------------------------------------------------------------------------------

local function charge_hop(key, ask, flow, parent, now)
  local chain = {}
  for _, agent in ipairs(parent and parent[HOP.chain] or {}) do chain[#chain + 1] = agent end
  chain[#chain + 1] = ask.target
  local hop = {}
  hop[HOP.id], hop[HOP.parent], hop[HOP.caller], hop[HOP.target] = ask.id, parent and parent[HOP.id] or '', ask.caller, ask.target
  hop[HOP.chain], hop[HOP.order], hop[HOP.start], hop[HOP.reserve] = chain, flow.next, text(now), ask.reserve
  hop[HOP.request], hop[HOP.recorded], hop[HOP.finish], hop[HOP.success] = ask.request, '0', '', 0
  hop[HOP.claims], hop[HOP.children], hop[HOP.depth] = 1, 0, #chain
  flow.used, flow.count, flow.next, flow.open = plus(flow.used, big(ask.reserve)), flow.count + 1, flow.next + 1, flow.open + 1
  flow.deepest = math.max(flow.deepest, #chain)
  flow.keep = larger(flow.keep, plus(now, big(ask.state_ttl)))
  hop[HOP.left_depth], hop[HOP.left_fan_out], hop[HOP.left_tokens], hop[HOP.left_time] = unpack(left(flow, #chain, now))
  if parent then
    parent[HOP.children] = parent[HOP.children] + 1
    write_hop(key, parent)
  end
  add_open(key, hop)
  redis.call('HINCRBY', key, 'd:' .. #chain, 1)
  if ask.request ~= '' then redis.call('HSET', key, 'r:' .. ask.request, ask.id) end
  return write_hop(key, hop)
end

local function enter(keys, argv)
  local key, ask = keys[1], hop_ask(argv)
  local now = clock(ask.clock)
  local flow, parent, known, reason = judge(key, ask, now)
  if reason == 'misused' then return {'misused'} end
  if reason then
    if flow and not flow.is_fresh then redis.call('HINCRBY', key, 'refusals', 1) end
    return refused(reason, flow, parent, now)
  end
  if known then
    local shown = cjson.encode(known)
    known[HOP.claims] = known[HOP.claims] + 1
    write_hop(key, known)
    return {'entered', shown, text(flow.start), text(flow.timeout), 1, 0, 0}
  end
  if not flow.is_fresh and hop_of(key, ask.id) then return redis.error_reply('ERR the id of the new hop is taken') end
  local replaced = 0
  if flow.is_fresh then
    replaced = redis.call('DEL', key)
    if replaced == 1 then tell(ask, 'forgotten') end
  end
  local packed = charge_hop(key, ask, flow, parent, now)
  write_flow(key, flow)
  expire(key, flow)
  tell(ask, 'entered', packed)
  return {'entered', packed, text(flow.start), text(flow.timeout), 0, flow.is_fresh and 1 or 0, replaced}
end

local function would_enter(keys, argv)
  local key, ask = keys[1], hop_ask(argv)
  local now = clock(ask.clock)
  local flow, parent, _, reason = judge(key, ask, now)
  if not reason then return {'granted'} end
  if reason == 'misused' then return {'misused'} end
  if argv[20] == '1' and flow and not flow.is_fresh then redis.call('HINCRBY', key, 'refusals', 1) end
  return refused(reason, flow, parent, now)
end

local function check(keys, argv)
  local key, ask = keys[1], common(argv)
  proof(ask, argv, 6)
  local now = clock(ask.clock)
  local flow = open_flow(key, now)
  local parent = flow and find_parent(key, ask) or nil
  local reason = first_refusal(ask, flow, parent, now)
  if reason then return refused(reason, flow, parent, now) end
  return {'granted'}
end

local function remove_hop(key, flow, hop)
  flow.used, flow.count, flow.open = minus(flow.used, charge(hop)), flow.count - 1, flow.open - 1
  remove_open(key, hop)
  redis.call('HDEL', key, 'h:' .. hop[HOP.id])
  if hop[HOP.request] ~= '' then redis.call('HDEL', key, 'r:' .. hop[HOP.request]) end
  redis.call('HINCRBY', key, 'd:' .. hop[HOP.depth], -1)
  while flow.deepest > 0 and tonumber(redis.call('HGET', key, 'd:' .. flow.deepest) or '0') == 0 do
    flow.deepest = flow.deepest - 1
  end
  local parent = hop_of(key, hop[HOP.parent])
  if parent then
    parent[HOP.children] = parent[HOP.children] - 1
    write_hop(key, parent)
  end
end

local function cancel(keys, argv)
  local key, ask = keys[1], common(argv)
  local now = clock(ask.clock)
  local flow = open_flow(key, now)
  local hop = flow and hop_of(key, argv[6])
  if not hop or not is_open(hop) then return {'nothing'} end
  if hop[HOP.claims] > 1 then
    hop[HOP.claims] = hop[HOP.claims] - 1
    write_hop(key, hop)
    return {'nothing'}
  end
  if hop[HOP.recorded] ~= '0' or hop[HOP.children] > 0 then
    local packed = close(key, flow, hop, now, 0)
    write_flow(key, flow)
    tell(ask, 'exited', packed)
    return {'exited', packed, 0}
  end
  remove_hop(key, flow, hop)
  hop[HOP.finish] = text(now)
  local packed = cjson.encode(hop)
  tell(ask, 'cancelled', packed)
  if flow.count > 0 then
    write_flow(key, flow)
    return {'cancelled', packed, 0}
  end
  redis.call('DEL', key)
  tell(ask, 'forgotten')
  return {'cancelled', packed, 1}
end

local function find(key, ask, id)
  local now = clock(ask.clock)
  local flow = open_flow(key, now)
  if not flow then return {'missing', 'flow'} end
  local hop = hop_of(key, id)
  if not hop then return {'missing', 'hop'} end
  return nil, flow, hop, now
end

local function exit(keys, argv)
  local key, ask = keys[1], common(argv)
  local missing, flow, hop, now = find(key, ask, argv[6])
  if missing then return missing end
  if not is_open(hop) then return {'exited', 0, left(flow, flow.deepest, now)} end
  local before = charge(hop)
  hop[HOP.recorded] = text(saturated(plus(big(hop[HOP.recorded]), big(argv[7]))))
  flow.used = plus(minus(flow.used, before), charge(hop))
  local packed = close(key, flow, hop, now, tonumber(argv[8]))
  write_flow(key, flow)
  tell(ask, 'exited', packed)
  return {'exited', 1, left(flow, flow.deepest, now), packed}
end

local function record(keys, argv)
  local key, ask = keys[1], common(argv)
  local missing, flow, hop = find(key, ask, argv[6])
  if missing then return missing end
  local tokens, request = argv[7], argv[8]
  local told = cjson.encode({argv[6], tokens})
  local known = request ~= '' and redis.call('HGET', key, 't:' .. request)
  local packed = false
  if not known then
    local before = charge(hop)
    hop[HOP.recorded] = text(saturated(plus(big(hop[HOP.recorded]), big(tokens))))
    packed = settle(key, flow, hop, before)
    if request ~= '' then redis.call('HSET', key, 't:' .. request, told) end
    write_flow(key, flow)
    tell(ask, 'recorded', packed)
  elseif known ~= told then
    return {'misused'}
  end
  return {'recorded', text(saturated(flow.used)), text(minus(flow.max_tokens, flow.used)), is_open(hop) and 1 or 0, packed}
end

local function read(keys, argv)
  local now = clock(argv[4])
  if not open_flow(keys[1], now) then return {text(now), false} end
  return {text(now), redis.call('HGETALL', keys[1])}
end

-- Forget a flow whose state is over; 1 when it is gone.
local function forget(keys, argv)
  local ask = common(argv)
  if open_flow(keys[1], clock(ask.clock)) then return 0 end
  redis.call('DEL', keys[1])
  return 1
end

-- A write that means nothing: whether functions run and the server takes writes.
local function beat(keys)
  redis.call('SET', keys[1], '1', 'EX', 60)
  return 'OK'
end

redis.register_function('tidegate_flow_enter_VERSION', enter)
redis.register_function('tidegate_flow_would_enter_VERSION', would_enter)
redis.register_function('tidegate_flow_cancel_VERSION', cancel)
redis.register_function('tidegate_flow_exit_VERSION', exit)
redis.register_function('tidegate_flow_record_VERSION', record)
redis.register_function('tidegate_flow_forget_VERSION', forget)
redis.register_function('tidegate_flow_beat_VERSION', beat)
redis.register_function('tidegate_flow_check_VERSION', check)
redis.register_function('tidegate_flow_read_VERSION', read)
