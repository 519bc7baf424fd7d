-- Slurm's cli_filter.lua (slurm.conf: CliFilterPlugins=lua): gives jobs and steps of --gres=shard:N the variables
-- of programs on a slice.  "gpukernel slurm configure --filter" fills in the next line.
local LEASE, STEPS = nil, {}

-- What --export said before this file changed it is its first element: a step in the job begins with it again.
local MARK, OURS = "GPUKERNEL_EXPORT=", "GPUKERNEL_LEASE_FILE="

local function split(text, separator)
  local parts, from = {}, 1
  while from <= #text do
    local at = string.find(text, separator, from, true) or #text + 1
    if at > from then parts[#parts + 1] = string.sub(text, from, at - 1) end
    from = at + 1
  end
  return parts
end

local function set_of(parts)
  local found = {}
  for _, part in ipairs(parts) do found[part] = true end
  return found
end

-- The list `given` without the parts of `own`, which then stand before or after it.
local function with_own(given, own, separator, first)
  local ours, others = split(own, separator), {}
  local known = set_of(ours)
  for _, part in ipairs(split(given, separator)) do
    if not known[part] then others[#others + 1] = part end
  end
  local front, back = first and ours or others, first and others or ours
  for _, part in ipairs(back) do front[#front + 1] = part end
  return table.concat(front, separator)
end

-- The list `given`, and at its end the parts of `own` that are not in it: what is there keeps its place.
local function with_missing(given, own)
  local known = set_of(split(given, ":"))
  for _, part in ipairs(split(own, ":")) do
    if not known[part] then given = given == "" and part or given .. ":" .. part end
  end
  return given
end

-- Whether a flag of this name is among words, with a value that is not ours.
local function is_named(given, flag)
  local name = string.match(flag, "^[^=]*")
  for _, word in ipairs(split(given, " ")) do
    if word ~= flag and string.match(word, "^[^=]*") == name then return true end
  end
  return false
end

-- The new value of a variable; nil where it stays as it is.
local function changed(how, given, value)
  if how == "set" then return value end
  if how == "default" then return given == "" and value or nil end
  if how == "flags" then
    local flag = string.match(value, "^%S+")
    if not flag or is_named(given, flag) then return nil end
    return with_own(given, value, " ", false)
  end
  if how == "add" then return with_missing(given, value) end
  return with_own(given, value, ":", how == "first")
end

-- The names of this process's variables that --export can name.
local function names_here()
  local names, file = {}, io.open("/proc/self/environ", "rb")
  if not file then return names end
  for _, one in ipairs(split(file:read("*a"), "\0")) do
    local name = string.match(one, "^([^=]+)=")
    if name and not string.find(name, "[,%s'\"]") then names[#names + 1] = name end
  end
  file:close()
  return names
end

-- What was said with --export before this file changed it, and whether it had.
local function said_first(export)
  local kind, rest = string.match(export, "^" .. MARK .. "(%u+),?(.*)$")
  if not kind then return export, false end
  if kind == "ALL" or kind == "NONE" then return kind, true end
  local at = string.find("," .. rest, "," .. OURS, 1, true)
  local list = at and string.sub(rest, 1, math.max(at - 2, 0)) or rest
  return (kind == "MORE" and "ALL," or "") .. list, true
end

-- The elements of --export for a shard job: variables are named one by one, since Slurm prefers the submitter's to
-- those that are given a value beside ALL.
local function with_slice(export, nested)
  local elements, here = split(export, ","), {}
  local all = set_of(elements)["ALL"] or false
  local kind = export == "NONE" and "NONE" or not all and "LIST" or #elements == 1 and "ALL" or "MORE"
  local given, theirs, explicit = {}, {}, {GPUKERNEL_LEASE_FILE = true, GPUKERNEL_EXPORT = true}
  if all then here = names_here() end
  for _, name in ipairs(here) do given[name] = os.getenv(name) end
  for _, step in ipairs(STEPS) do
    local now = nested and os.getenv(step[2]) or nil
    -- The node's own PATH is none that this file has set.
    if now and (step[1] ~= "add" or with_missing(now, step[3]) == now) then given[step[2]] = now end
  end
  for _, one in ipairs(elements) do
    local name, value = string.match(one, "^([^=]+)=(.*)$")
    given[name or one] = value or os.getenv(one)
    if one ~= "ALL" and one ~= "NONE" then theirs[#theirs + 1] = one end
  end

  local order = {}
  for _, step in ipairs(STEPS) do
    local how, name, value = step[1], step[2], step[3]
    if how == "unset" then
      explicit[name] = true
    elseif how ~= "add" or given[name] then  -- without a PATH the node has its own
      local new = changed(how, given[name] or "", value)
      if nested and not all and not new then new = given[name] end  -- what the job has of before
      if new and string.find(new, "[,\n]") then
        slurm.log_error("gpukernel: %s has a comma or a line break; set it without, else a slice is not found by it", name)
      elseif new then
        if not explicit[name] then order[#order + 1] = name end
        given[name], explicit[name] = new, true
      end
    end
  end

  local result = {MARK .. kind}
  for _, one in ipairs(theirs) do
    local name = string.match(one, "^[^=]+")
    if not explicit[name] then result[#result + 1] = one end
    explicit[name] = true
  end
  result[#result + 1] = OURS .. LEASE
  for _, name in ipairs(order) do result[#result + 1] = name .. "=" .. given[name] end
  for _, name in ipairs(here) do
    if not explicit[name] then result[#result + 1] = name end
    explicit[name] = true
  end
  return table.concat(result, ",")
end

local function names_shards(gres) return string.find("," .. gres .. ",", "[,:]shard[,:=]") ~= nil end

-- Whether the job that a step is of has shards.
local function job_has_shards(job)
  if job == os.getenv("SLURM_JOB_ID") then
    if string.sub(os.getenv("GPUKERNEL_LEASE_FILE") or "", 1, 6) == "slurm:" then return true end
    if os.getenv("SLURMD_NODENAME") then return false end  -- in a job, whose variables were set when it began
  end
  local asked = io.popen("squeue --noheader --jobs=" .. job .. " --Format=tres-per-job:200,tres-per-node:200,tres-per-task:200 2>/dev/null")
  local said = asked and asked:read("*a") or ""
  if asked then asked:close() end
  return string.find(said, "[:/]shard[:=%s]") ~= nil
end

function slurm_cli_setup_defaults(options, early_pass) return slurm.SUCCESS end

function slurm_cli_pre_submit(options, pack_offset)
  if options["type"] ~= "srun" and options["type"] ~= "sbatch" then return slurm.SUCCESS end
  local gres, export = options["gres"] or "", options["export"] or "ALL"
  local job = options["type"] == "srun" and string.match(options["jobid"] or "", "^%d+$") or nil
  local shards = names_shards(gres)
  if gres == "" and job then shards = job_has_shards(job) end
  local first, nested = said_first(export)
  if shards then
    options["export"] = with_slice(first, nested)
  elseif nested then
    options["export"] = first
  end
  return slurm.SUCCESS
end

function slurm_cli_post_submit(pack_offset, job_id, step_id) return slurm.SUCCESS end
