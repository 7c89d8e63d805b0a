"""The buckets in Redis: one Lua script, which carries out the operations of one tenant in order and all or nothing.

KEYS[1] is the tenant's prefix; its hash tag puts all of the tenant's keys into one slot of a cluster. ARGV[1] has the
operations (`operations.py`), ARGV[2] the milliseconds of a place, ARGV[3] those of a reservation's record. Time is
Redis's own. Numbers are doubles that hold integers below 2^53 only: no limit is above 10^9 a minute. A refill carries
its remainder, in sixtieths of a micro-unit, so that nothing is lost however often a bucket is looked at.

A bucket that is not there is full. `memory_buckets.py` is the same in Python.
"""

SCRIPT = """
local MICRO, PLACE_WAIT = 1000000, 1000000
local prefix, operations = KEYS[1], cmsgpack.unpack(ARGV[1])
local lease, keep = tonumber(ARGV[2]), tonumber(ARGV[3])
local clock = redis.call('TIME')
local now = clock[1] * MICRO + clock[2]
local now_ms = math.floor(now / 1000)
local buckets, places = {}, {}

local function buckets_of(subject)
  local found = buckets[subject[1]]
  if not found then
    local key = prefix .. ':bucket:' .. subject[1]
    local saved = redis.call('GET', key)
    found = saved and cmsgpack.unpack(saved) or {now, false, false, false}
    found.key, found.changed = key, now < found[1] -- a clock that was set back counts from now on
    buckets[subject[1]] = found
  end
  local elapsed = math.max(0, now - found[1])
  for meter = 2, 4 do
    local limit, bucket = subject[meter], found[meter]
    local full = limit * MICRO
    if limit < 0 then
      found[meter] = false
    elseif not bucket then
      found[meter] = {full, 0}
    elseif elapsed > 0 then
      local whole = math.floor(elapsed / 60)
      local part = (elapsed - whole * 60) * limit + bucket[2]
      bucket[1] = bucket[1] + whole * limit + math.floor(part / 60)
      bucket[2] = part % 60
    end
    bucket = found[meter]
    if bucket and bucket[1] >= full then
      bucket[1], bucket[2] = full, 0
    end
  end
  found[1], found.limits = now, subject
  return found
end

local function has_buckets(subject)
  return subject[2] >= 0 or subject[3] >= 0 or subject[4] >= 0
end

local function places_of(subject)
  local found = places[subject[1]]
  if not found then
    found = {key = prefix .. ':places:' .. subject[1]}
    redis.call('ZREMRANGEBYSCORE', found.key, '-inf', now_ms)
    for _, late in ipairs(redis.call('ZRANGEBYSCORE', found.key, now_ms + lease + 1, '+inf')) do
      redis.call('ZADD', found.key, now_ms + lease, late) -- the clock was set back
    end
    found.taken = redis.call('ZCARD', found.key)
    places[subject[1]] = found
  end
  return found
end

local function take_places(request, subjects)
  for _, subject in ipairs(subjects) do
    if subject[5] >= 0 then
      local found = places_of(subject)
      found.taken = found.taken + redis.call('ZADD', found.key, now_ms + lease, request)
      redis.call('PEXPIRE', found.key, 2 * lease)
    end
  end
end

local function time_until(missing, limit)
  local whole = math.floor(missing / limit)
  return whole * 60 + math.ceil((missing - whole * limit) * 60 / limit)
end

local function add(subject, meter, amount)
  if subject[meter] >= 0 then
    local found = buckets_of(subject)
    local bucket, full = found[meter], subject[meter] * MICRO
    bucket[1] = bucket[1] + amount
    if bucket[1] >= full then
      bucket[1], bucket[2] = full, 0
    end
    found.changed = true
  end
end

local function settle(subjects, meter, reserved, actual)
  for _, subject in ipairs(subjects) do
    add(subject, meter, math.min(reserved * MICRO, subject[meter] * MICRO) - actual * MICRO)
  end
end

local function levels_of(subjects)
  local levels = {}
  for index, subject in ipairs(subjects) do
    local level = {0, 0, 0, 0}
    if has_buckets(subject) then
      local found = buckets_of(subject)
      for meter = 2, 4 do
        level[meter - 1] = found[meter] and found[meter][1] or 0
      end
    end
    if subject[5] >= 0 then
      level[4] = math.max(0, subject[5] - places_of(subject).taken)
    end
    levels[index] = level
  end
  return levels
end

local function counts_tokens(subjects)
  for _, subject in ipairs(subjects) do
    if subject[3] >= 0 or subject[4] >= 0 then
      return true
    end
  end
  return false
end

local run = {}

function run.reserve(operation)
  local request, subjects = operation[2], operation[5]
  local needed = {0, MICRO, operation[3] * MICRO, operation[4] * MICRO}
  local record = counts_tokens(subjects) and prefix .. ':request:' .. request
  if record and redis.call('EXISTS', record) == 1 then
    return {true, 0, 0, 0, levels_of(subjects)}
  end
  local wait, which, failing = 0, 0, 0
  for index, subject in ipairs(subjects) do
    local found = has_buckets(subject) and buckets_of(subject)
    for meter = 2, 4 do
      if subject[meter] >= 0 then
        local missing = math.min(needed[meter], subject[meter] * MICRO) - found[meter][1]
        local time = missing > 0 and time_until(missing, subject[meter]) or 0
        if time > wait then
          wait, which, failing = time, index - 1, meter - 2
        end
      end
    end
    if subject[5] >= 0 and places_of(subject).taken >= subject[5] and PLACE_WAIT > wait then
      wait, which, failing = PLACE_WAIT, index - 1, 3
    end
  end
  if wait > 0 then
    return {false, wait, which, failing, levels_of(subjects)}
  end
  for _, subject in ipairs(subjects) do
    for meter = 2, 4 do
      add(subject, meter, -math.min(needed[meter], subject[meter] * MICRO))
    end
  end
  take_places(request, subjects)
  if record then
    redis.call('SET', record, cmsgpack.pack({operation[3], operation[4]}), 'PX', keep)
  end
  return {true, 0, 0, 0, levels_of(subjects)}
end

function run.began(operation)
  local record = prefix .. ':request:' .. operation[2]
  local saved = redis.call('GET', record)
  local reserved = saved and cmsgpack.unpack(saved)
  if reserved and reserved[1] >= 0 then
    settle(operation[4], 3, reserved[1], operation[3])
    redis.call('SET', record, cmsgpack.pack({-1, reserved[2]}), 'PX', keep)
  end
  return false
end

function run.ended(operation)
  local request, subjects = operation[2], operation[5]
  local record = prefix .. ':request:' .. request
  if counts_tokens(subjects) then
    local saved = redis.call('GET', record)
    if saved then
      local reserved = cmsgpack.unpack(saved)
      if reserved[1] >= 0 then
        settle(subjects, 3, reserved[1], operation[3])
      end
      settle(subjects, 4, reserved[2], operation[4])
      redis.call('DEL', record)
    end
  end
  for _, subject in ipairs(subjects) do
    if subject[5] >= 0 then
      local found = places_of(subject)
      found.taken = found.taken - redis.call('ZREM', found.key, request)
    end
  end
  return false
end

function run.renew(operation)
  take_places(operation[2], operation[3])
  return false
end

function run.charge(operation)
  for _, subject in ipairs(operation[3]) do
    for meter = 2, 4 do
      if subject[meter] >= 0 then
        local level = buckets_of(subject)[meter][1]
        add(subject, meter, math.max(math.min(level, 0), level - operation[2][meter - 1]) - level)
      end
    end
  end
  return false
end

function run.alive(operation)
  redis.call('ZADD', prefix, now_ms + lease, operation[2])
  redis.call('ZREMRANGEBYSCORE', prefix, '-inf', now_ms)
  redis.call('PEXPIRE', prefix, 2 * lease)
  local names, before = redis.call('ZRANGE', prefix, 0, -1), 0
  for _, name in ipairs(names) do
    if name < operation[2] then before = before + 1 end
  end
  return {#names, before}
end

local answers = {}
for index, operation in ipairs(operations) do
  answers[index] = run[operation[1]](operation)
end
for subject, found in pairs(buckets) do
  if found.changed then
    local lasts = keep -- a bucket in debt is kept until it is full
    for meter = 2, 4 do
      if found[meter] then
        local missing = found.limits[meter] * MICRO - found[meter][1]
        lasts = math.max(lasts, math.ceil(time_until(missing, found.limits[meter]) / 1000))
      end
    end
    redis.call('SET', found.key, cmsgpack.pack({found[1], found[2], found[3], found[4]}), 'PX', lasts)
  end
end
return cmsgpack.pack(answers)
"""
