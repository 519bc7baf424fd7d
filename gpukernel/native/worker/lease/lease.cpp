#include "worker/lease/lease.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace gpukernel::worker {

bool Lease::take(uint64_t bytes) {
    if (bytes > limit_ || used_ > limit_ - bytes) return false;
    used_ += bytes;
    peak_ = std::max<uint64_t>(peak_, used_);
    recent_peak_ = std::max<uint64_t>(recent_peak_, used_);
    return true;
}

void Lease::give_back(uint64_t bytes) { used_ -= std::min<uint64_t>(bytes, used_); }

uint64_t Lease::recent_peak(bool begin_again) {
    std::lock_guard lock(mutex_);
    const uint64_t peak = std::max<uint64_t>(recent_peak_, used_);
    if (begin_again) recent_peak_ = 0;
    return peak;
}

bool Lease::reserve(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    if (!take(bytes)) return false;
    in_advance_ += bytes;
    return true;
}

void Lease::cancel(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    in_advance_ -= bytes;
    give_back(bytes);
}

void Lease::commit(CUdeviceptr address, uint64_t bytes, uint64_t asked, const void* owner,
                   bool asynchronous) {
    std::lock_guard lock(mutex_);
    in_advance_ -= bytes;
    host_memory.note(HostMemory::BLOCK);
    Block& block = blocks_[address] = {asked, bytes, owner, nullptr};
    block.shareable = !asynchronous;
}

std::optional<SharedName> Lease::name_of(CUdeviceptr address, const void* owner) {
    std::lock_guard lock(mutex_);
    auto it = blocks_.find(address);
    if (it == blocks_.end() || !it->second.shareable || it->second.owner != owner || it->second.ending)
        return std::nullopt;
    if (!it->second.name) it->second.name = new_shared_name();
    return it->second.name;
}

bool Lease::has_name(CUdeviceptr address) const {
    std::lock_guard lock(mutex_);
    auto it = blocks_.upper_bound(address);
    if (it == blocks_.begin()) return false;
    --it;
    return address - it->first < it->second.bytes && it->second.shareable;
}

CUresult Lease::find(const SharedName& name, const void* program, CUdeviceptr& address) const {
    std::lock_guard lock(mutex_);
    for (const auto& [its, block] : blocks_) {
        if (block.name != name || block.ending) continue;
        if (block.owner == program) return CUDA_ERROR_INVALID_CONTEXT;
        address = its;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

void Lease::add_variable(CUdeviceptr address, uint64_t bytes, const void* owner, const void* module) {
    std::lock_guard lock(mutex_);
    blocks_.try_emplace(address, Block{bytes, 0, owner, module});
}

bool Lease::charge_module(const void* module, uint64_t bytes, const void* owner, uint64_t slack) {
    std::lock_guard lock(mutex_);
    if (!take(bytes)) return false;
    modules_[module] = {bytes, owner, slack};
    return true;
}

bool Lease::grow_module(const void* module, uint64_t bytes, uint64_t slack) {
    std::lock_guard lock(mutex_);
    const auto it = modules_.find(module);
    if (it == modules_.end()) return true;  // gone meanwhile, with what it took
    ModuleCharge& charge = it->second;
    charge.owed += bytes, charge.slack += slack;
    if (!charge.owed) return true;
    if (!take(charge.owed)) return false;
    charge.bytes += std::exchange(charge.owed, 0);
    return true;
}

bool Lease::charges_module(const void* module) const {
    std::lock_guard lock(mutex_);
    return modules_.contains(module);
}

std::optional<std::pair<uint64_t, uint64_t>> Lease::books() const {
    std::lock_guard lock(mutex_);
    if (in_advance_) return std::nullopt;
    uint64_t sum = used_;
    for (const auto& [module, charge] : modules_) sum += charge.owed;
    return std::pair(releases_, sum);
}

void Lease::correct() {
    std::lock_guard lock(mutex_);
    const bool any = std::any_of(modules_.begin(), modules_.end(),
                                 [](const auto& entry) { return entry.second.slack != 0; });
    const auto now = any ? footprint.bytes() : std::nullopt;
    if (!now) return;
    const uint64_t taken = *now - std::min(footprint_at_first, *now);
    uint64_t charged = used_ - in_advance_;
    for (const auto& [module, charge] : modules_) charged += charge.owed;
    uint64_t too_much = charged > taken ? charged - taken : 0;
    for (auto& [module, charge] : modules_) {
        const uint64_t back = std::min(too_much, std::exchange(charge.slack, 0));
        const uint64_t unpaid = std::min(back, charge.owed);
        charge.owed -= unpaid, charge.bytes -= back - unpaid, too_much -= back;
        give_back(back - unpaid);
    }
}

void Lease::refund_module(const void* module) {
    std::lock_guard lock(mutex_);
    if (auto it = modules_.find(module); it != modules_.end()) {
        give_back(it->second.bytes);
        modules_.erase(it);
    }
    std::erase_if(blocks_, [&](const auto& block) { return block.second.module == module; });
}

bool Lease::set_aside(CUlimit limit, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    uint64_t& now = aside_[limit];
    if (bytes > now && !take(bytes - now)) return false;
    if (bytes < now) give_back(now - bytes);
    now = bytes;
    return true;
}

void Lease::reset_limits() {
    cuda.clear_heap();
    local_bytes = 0;
    std::erase_if(usual_limits, [this](const auto& usual) {
        return cuda.cuCtxSetLimit(usual.first, usual.second) == CUDA_SUCCESS && set_aside(usual.first, 0);
    });
}

bool Lease::begin_release(CUdeviceptr address, const void* owner) {
    std::lock_guard lock(mutex_);
    auto it = blocks_.find(address);
    if (it == blocks_.end() || it->second.charged == 0 || it->second.owner != owner || it->second.ending)
        return false;
    it->second.ending = it->second.releasing = true;
    ++ending_;
    return true;
}

void Lease::end_release(CUdeviceptr address) {
    std::lock_guard lock(mutex_);
    auto it = blocks_.find(address);
    give_back(it->second.charged);
    host_memory.give_back(HostMemory::BLOCK);
    blocks_.erase(it);
    --ending_;
    ++releases_;
    ended_.notify_all();
}

void Lease::cancel_release(CUdeviceptr address) {
    std::lock_guard lock(mutex_);
    Block& block = blocks_.at(address);
    block.ending = block.releasing = false;
    --ending_;
    ended_.notify_all();
}

uint64_t Lease::keep(CUdeviceptr address, const void* owner) {
    std::lock_guard lock(mutex_);
    auto it = blocks_.find(address);
    if (it == blocks_.end() || !it->second.charged || it->second.owner != owner || it->second.ending ||
        !it->second.shareable || it->second.name)
        return 0;
    it->second.ending = true, it->second.settled = false;
    return it->second.kept = ++keeps_;
}

void Lease::settle_kept(CUdeviceptr address, uint64_t number) {
    std::lock_guard lock(mutex_);
    if (auto it = blocks_.find(address); it != blocks_.end() && it->second.kept == number)
        it->second.settled = true;
}

bool Lease::take_again(CUdeviceptr address, const void* owner, bool& settled) {
    std::lock_guard lock(mutex_);
    auto it = blocks_.find(address);
    if (it == blocks_.end() || it->second.owner != owner || !it->second.kept) return false;
    it->second.ending = false, it->second.kept = 0;
    settled = it->second.settled;
    return true;
}

bool Lease::retire(CUdeviceptr address, const void* owner, uint64_t& asked) {
    std::lock_guard lock(mutex_);
    auto it = blocks_.find(address);
    if (it == blocks_.end() || it->second.charged == 0 || it->second.owner != owner || it->second.ending)
        return false;
    it->second.ending = true;
    it->second.shareable = false;  // who gets it next has not shared it
    it->second.name.reset();
    asked = it->second.bytes;
    return true;
}

void Lease::revive(CUdeviceptr address) {
    std::lock_guard lock(mutex_);
    blocks_.at(address).ending = false;
}

uint64_t Lease::detach(CUdeviceptr address) {
    std::lock_guard lock(mutex_);
    auto it = blocks_.find(address);
    const uint64_t charged = it->second.charged;
    physical_[it->second.owner] += charged;
    host_memory.give_back(HostMemory::BLOCK);
    blocks_.erase(it);
    return charged;
}

void Lease::freed_some() {
    std::lock_guard lock(mutex_);
    ++releases_;
    ended_.notify_all();
}

uint64_t Lease::releases() {
    std::lock_guard lock(mutex_);
    return releases_;
}

bool Lease::wait_for_release(uint64_t after, std::chrono::microseconds pause) {
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, pause, [&] { return releases_ != after; });
}

bool Lease::is_releasing() {
    std::lock_guard lock(mutex_);
    return ending_ != 0;
}

bool Lease::charge(const void* owner, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    if (!take(bytes)) return false;
    physical_[owner] += bytes;
    return true;
}

void Lease::refund(const void* owner, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    auto it = physical_.find(owner);
    if (it == physical_.end() || it->second < bytes) return;
    give_back(bytes);
    if (!(it->second -= bytes)) physical_.erase(it);
}

void Lease::pass_on(const void* owner, const void* to, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    auto it = physical_.find(owner);
    if (it == physical_.end() || it->second < bytes) return;
    if (!(it->second -= bytes)) physical_.erase(it);
    physical_[to] += bytes;
}

void Lease::set_accessible(CUdeviceptr address, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    if (bytes)
        accessible_[address] = bytes;
    else
        accessible_.erase(address);
}

bool Lease::valid(CUdeviceptr address, uint64_t bytes, bool lasting) const {
    std::lock_guard lock(mutex_);
    auto it = blocks_.upper_bound(address);
    if (it != blocks_.begin()) {
        --it;
        const uint64_t offset = address - it->first;
        if (offset <= it->second.bytes && bytes <= it->second.bytes - offset)
            return !it->second.ending && (it->second.shareable || !lasting);
    }
    // Adjacent mappings count as one range.
    auto mapping = accessible_.upper_bound(address);
    if (mapping == accessible_.begin()) return false;
    --mapping;
    uint64_t offset = address - mapping->first;
    if (offset > mapping->second) return false;
    while (bytes > mapping->second - offset) {
        bytes -= mapping->second - offset;
        const CUdeviceptr end = mapping->first + mapping->second;
        if (++mapping == accessible_.end() || mapping->first != end) return false;
        offset = 0;
    }
    return true;
}

void Lease::free_all(const void* owner, const std::function<bool(CUdeviceptr)>& free) {
    std::vector<std::pair<CUdeviceptr, uint64_t>> charged;
    {
        std::lock_guard lock(mutex_);
        std::erase_if(blocks_, [&](const auto& one) {
            const auto& [address, block] = one;
            // What another thread of a program is freeing while this one resets the context, that one frees.
            if (block.owner != owner || block.releasing) return false;
            if (block.charged) charged.emplace_back(address, block.charged);
            return true;
        });
    }
    // Without the lock, which an early read may wait for: who frees waits for it (session/early_reads.h).
    for (const auto& [address, bytes] : charged) {
        host_memory.give_back(HostMemory::BLOCK);
        if (!free(address)) continue;
        std::lock_guard lock(mutex_);
        give_back(bytes);
    }
}

bool Lease::limit(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    if (bytes < used_) return false;
    limit_ = bytes;
    return true;
}

void Lease::call(bool launch) {
    ++calls;
    last_call_ = Clock::now().time_since_epoch().count();
    if (!launch) return;
    ++launches;
    std::lock_guard lock(mutex_);
    if (!is_busy_) is_busy_ = true, busy_since_ = Clock::now();
}

void Lease::finished() {
    std::lock_guard lock(mutex_);
    if (!is_busy_) return;
    const auto now = Clock::now();
    busy_ += std::chrono::duration<double>(now - busy_since_).count();
    activity_.busy(busy_since_, now);
    is_busy_ = false;
}

double Lease::gpu_seconds() const {
    std::lock_guard lock(mutex_);
    return busy_ + (is_busy_ ? std::chrono::duration<double>(Clock::now() - busy_since_).count() : 0);
}

double Lease::gpu_share() const {
    std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    Activity until_now = activity_;
    if (is_busy_) until_now.busy(busy_since_, now);
    return until_now.share(now);
}

void Lease::enter(const void* owner) {
    std::lock_guard lock(mutex_);
    programs_.try_emplace(owner);
    connections = static_cast<uint32_t>(programs_.size());
}

void Lease::introduce(const void* owner, uint32_t pid, std::string_view command) {
    std::lock_guard lock(mutex_);
    programs_[owner] = {pid, std::string(command), 0};
}

void Lease::leave(const void* owner) {
    std::lock_guard lock(mutex_);
    programs_.erase(owner);
    connections = static_cast<uint32_t>(programs_.size());
}

std::vector<Lease::Program> Lease::programs() const {
    std::lock_guard lock(mutex_);
    std::map<const void*, uint64_t> bytes;
    for (const auto& [address, block] : blocks_) bytes[block.owner] += block.charged;
    for (const auto& [thing, charge] : modules_) bytes[charge.owner] += charge.bytes;
    for (const auto& [owner, physical] : physical_) bytes[owner] += physical;
    std::vector<Program> found;
    for (const auto& [owner, program] : programs_)
        found.push_back({program.pid, program.command, bytes[owner]});
    return found;
}

double Lease::idle_seconds() const {
    return std::chrono::duration<double>(Clock::now().time_since_epoch() - Clock::duration(last_call_.load()))
        .count();
}

}  // namespace gpukernel::worker
