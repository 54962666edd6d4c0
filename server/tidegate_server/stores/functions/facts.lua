#!lua name=tidegate_facts_VERSION
--[==[
The newest fact per key (§3.4, §3.6 and §3.7 of the contract), for all replicas. The rules are those of core/facts.py.

All facts are one hash, so that a batch is one step:
  id, version       which table this is, and how many changes it has seen
  f:<key>           a fact, a JSON array (see FACT)

Every change is published whole with its version: [id, version, time, [[field, fact or ""], …]]. Who has seen all
versions has the table; who misses one reads it anew. Times are microseconds by this server's clock, exact in a double.
]==]

local LASTS_SECONDS = 8 * 86400 -- a table that nobody writes any more goes by itself

-- `order` is the sample's sequence as text of fixed width; `class` tells what concerns the rules: "available" for an
-- AVAILABLE row without a blocker, "cleared" for a row of a kind that such a row lifts, "blocked" for another that may block.
local FACT = {captured = 1, ends = 2, order = 3, observed = 4, class = 5, identity = 6, collector = 7, body = 8}

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1e6 + tonumber(time[2])
end

local function load(key, field)
  local found = redis.call('HGET', key, field)
  if not found then return nil end
  return cjson.decode(found)
end

-- cjson would round a time to 14 digits.
local function pack(fact)
  return string.format('[%.0f,%.0f,%s', fact[FACT.captured], fact[FACT.ends],
    string.sub(cjson.encode({unpack(fact, FACT.order)}), 2))
end

local function is_tie(one, other)
  if one[FACT.captured] == other[FACT.captured] then return true end
  local same = one[FACT.collector] == other[FACT.collector] and one[FACT.identity] == other[FACT.identity]
  return same and one[FACT.observed] ~= '' and one[FACT.observed] == other[FACT.observed]
end

local function is_newer(fact, than)
  if is_tie(fact, than) then return fact[FACT.order] > than[FACT.order] end
  return fact[FACT.captured] > than[FACT.captured]
end

local function clears(available, row)
  return available[FACT.class] == 'available' and row[FACT.class] == 'cleared' and is_newer(available, row)
end

local function remove(key, field, changes)
  redis.call('HDEL', key, field)
  changes[#changes + 1] = {field, ''}
end

-- Take one fact in, unless something newer is known. `related` are the fields of the rows that it clears, or of the
-- one that clears it.
local function put(key, field, fact, related, changes)
  local known = load(key, field)
  if known and not is_newer(fact, known) then return 0 end
  if fact[FACT.class] == 'cleared' then
    local available = load(key, related[1])
    if available and clears(available, fact) then return 0 end
  end
  if known and is_tie(fact, known) and known[FACT.captured] < fact[FACT.captured] then
    fact[FACT.captured] = known[FACT.captured] -- a sample that is sent again gets no younger
  end
  local packed = pack(fact)
  redis.call('HSET', key, field, packed)
  changes[#changes + 1] = {field, packed}
  if fact[FACT.class] == 'available' then
    for _, other in ipairs(related) do
      local row = load(key, other)
      if row and clears(fact, row) then remove(key, other, changes) end
    end
  end
  return 1
end

-- Give the changes a version and tell everybody.
local function commit(key, channel, time, changes)
  if #changes == 0 then return end
  if redis.call('HSETNX', key, 'id', string.format('%.0f', time)) == 1 then redis.call('HSET', key, 'version', 0) end
  local version = redis.call('HINCRBY', key, 'version', 1)
  redis.call('EXPIRE', key, LASTS_SECONDS)
  local packed = cjson.encode(changes)
  local id = redis.call('HGET', key, 'id')
  redis.call('PUBLISH', channel, string.format('["%s",%d,%.0f,%s]', id, version, time, packed))
end

local function seen(key, time)
  local values = redis.call('HMGET', key, 'id', 'version')
  return {values[1] or '', tonumber(values[2] or '0'), string.format('%.0f', time)}
end

-- ARGV: the channel; what is taken away, [[field, identity, collector, least age or -1], …]; what is put, [[field, related,
-- captured, age, ends or -1, ends in, order, observed, class, identity, collector, body], …]. Of the two ways to tell a
-- time the earlier one counts. One 1 or 0 a fact: accepted or superseded.
local function change(keys, argv)
  local key, time, changes, results = keys[1], now(), {}, {}
  for _, gone in ipairs(cjson.decode(argv[2])) do
    local fact = load(key, gone[1])
    local theirs = fact and fact[FACT.identity] == gone[2] and fact[FACT.collector] == gone[3]
    if theirs and (gone[4] < 0 or fact[FACT.captured] <= time - gone[4]) then remove(key, gone[1], changes) end
  end
  for i, item in ipairs(cjson.decode(argv[3])) do
    local ends = item[5] < 0 and -1 or math.min(item[5], time + item[6])
    local fact = {math.min(item[3], time - item[4]), ends, unpack(item, 7)}
    results[i] = put(key, item[1], fact, item[2], changes)
  end
  commit(key, argv[1], time, changes)
  return {seen(key, time), results}
end


local function look(keys)
  return seen(keys[1], now())
end

local function read(keys)
  return {seen(keys[1], now()), redis.call('HGETALL', keys[1])}
end

redis.register_function('tidegate_facts_change_VERSION', change)
redis.register_function{function_name = 'tidegate_facts_look_VERSION', callback = look, flags = {'no-writes'}}
redis.register_function{function_name = 'tidegate_facts_read_VERSION', callback = read, flags = {'no-writes'}}
