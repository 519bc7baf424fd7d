// Counts, before each operation, what its warp does with it.
#include "simgpu/profile/watch.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstring>
#include <mutex>
#include <string_view>

namespace gpukernel::simgpu::profile {
namespace {

constexpr uint32_t kSector = 32, kBanks = 32, kWord = 4;

uint32_t number_at(std::string_view text, size_t at) {
    while (at < text.size() && !std::isdigit(text[at])) ++at;
    uint32_t number = 0;
    for (; at < text.size() && std::isdigit(text[at]); ++at)
        number = 10 * number + static_cast<uint32_t>(text[at] - '0');
    return number;
}

// ld.SPACE.[vN.]MEMORY.REGISTER and st: the bits in memory, of each element.
uint8_t bytes_of_access(std::string_view key) {
    const size_t last = key.rfind('.'), before = key.rfind('.', last - 1), vector = key.find(".v");
    const uint32_t count = vector == std::string_view::npos ? 1 : number_at(key, vector);
    return static_cast<uint8_t>(count * number_at(key, before) / 8);
}

Space space_of(std::string_view key) {
    const std::string_view name = key.substr(3, key.find('.', 3) - 3);
    return name == "global"   ? Space::global
           : name == "shared" ? Space::shared
           : name == "local"  ? Space::local
           : name == "param"  ? Space::param
                              : Space::generic;
}

WatchPlan::Seen seen_of(const Op& op) {
    if (!op.fn || op.control != Control::none) return {};
    const std::string_view key = handler_name(op.fn);
    if (key.starts_with("ld.") || key.starts_with("st.")) {
        // What calls pass lies in local memory here, and in registers on a GPU.
        const Space space = space_of(key);
        if (op.named == Named::parameter || (space == Space::local && !op.whole)) return {};
        if (op.named == Named::constant) return {Watched::constant, Space::global, bytes_of_access(key)};
        return {key[0] == 'l' ? Watched::load : Watched::store, space, bytes_of_access(key)};
    }
    if (key.starts_with("atom.")) {
        const uint32_t bytes = key.ends_with("x2") ? 4 : number_at(key, key.rfind('.')) / 8;
        return {Watched::atomic, Space::generic, static_cast<uint8_t>(bytes)};
    }
    if (key == "cp.async") return {Watched::copy, Space::generic, static_cast<uint8_t>(op.imm)};
    for (const char* name : {"cp.", "tensor.", "tensormap.", "tex", "suld.", "sust.", "sured.", "ldmatrix",
                             "stmatrix", "wmma.load", "wmma.store", "mbarrier."})
        if (key.starts_with(name)) return {Watched::other, Space::generic, 0};
    // Multiplications of a warpgroup read operands from shared memory.
    if (key.starts_with("wgmma.") && key != "wgmma.commit" && key != "wgmma.whole")
        return {Watched::other, Space::generic, 0};
    return {};
}

std::shared_ptr<const WatchPlan> plan_of(const Function& function) {
    static std::mutex making;
    std::lock_guard lock(making);
    if (!function.watch_plan) {
        auto plan = std::make_shared<WatchPlan>();
        for (const Op& op : function.code) plan->of.push_back(seen_of(op));
        function.watch_plan = std::move(plan);
    }
    return function.watch_plan;
}

// The addresses of an operand of `lanes`.
void addresses_of(const Warp& warp, const Op& op, uint32_t operand, bool offset, uint32_t lanes,
                  uint64_t* to) {
    const char* at = warp.base[operand & 1] + operand;
    for (; lanes; lanes &= lanes - 1) {
        const int i = std::countr_zero(lanes);
        const auto imm = offset ? static_cast<uint64_t>(op.imm) : 0;
        if (offset && op.sub & 1)
            to[i] = static_cast<uint32_t>(reinterpret_cast<const uint32_t*>(at)[i] + imm);
        else
            to[i] = reinterpret_cast<const uint64_t*>(at)[i] + imm;
    }
}

}  // namespace

void Watcher::enter(const Function& function) {
    function_ = &function;
    plan_ = plan_of(function).get();
    std::vector<uint64_t>& times = executed_[&function];
    times.resize(function.code.size());
    times_ = times.data();
}

void Watcher::count(const Op& op, size_t n, uint32_t mask, uint32_t exec) {
    if (op.whole) {
        ++counts_.instructions;
        counts_.lanes += static_cast<uint64_t>(std::popcount(mask));
        // A thread that does not take a branch has executed it, too.
        counts_.executed += static_cast<uint64_t>(std::popcount(op.control == Control::branch ? mask : exec));
        ++times_[n];
    }
    switch (op.control) {
        case Control::branch:
            if (op.guard == kNoGuard) break;
            ++counts_.branches;
            counts_.divergent += exec && exec != mask;
            break;
        case Control::barrier:
        case Control::barrier_arrive:
            ++counts_.barriers;
            break;
        default:
            break;
    }
}

void Watcher::see(const Function& function, const Op& op, uint32_t lanes) {
    if (&function != function_) enter(function);
    count(op, static_cast<size_t>(&op - function.code.data()), lanes, lanes);
}

void Watcher::see(const Warp& warp, const Op& op, uint32_t mask, uint32_t exec) {
    const Function& function = *warp.frame->function;
    if (&function != function_) enter(function);
    const auto n = static_cast<size_t>(&op - function.code.data());
    count(op, n, mask, exec);
    if (const WatchPlan::Seen& seen = plan_->of[n]; exec && seen.access != Watched::none)
        look(warp, op, seen, exec);
}

void Watcher::look(const Warp& warp, const Op& op, const WatchPlan::Seen& seen, uint32_t lanes) {
    alignas(64) uint64_t at[kLanes];
    if (seen.access == Watched::other) {
        counts_.other_memory += op.whole;
        return;
    }
    if (seen.access == Watched::constant) {
        ++counts_.constant_requests;
        return;
    }
    if (seen.access == Watched::copy) {  // from global to shared memory
        addresses_of(warp, op, op.b, false, lanes, at);
        global(at, lanes, seen.bytes, false);
        addresses_of(warp, op, op.a, false, lanes, at);
        shared(at, lanes, seen.bytes);
        return;
    }
    addresses_of(warp, op, op.a, true, lanes, at);
    if (seen.access == Watched::atomic) {
        ++counts_.atomic_requests;
        counts_.atomic_threads += static_cast<uint64_t>(std::popcount(lanes));
        uint64_t turns = 0;
        for (uint32_t left = lanes; left;) {
            uint32_t same = 0;
            for (uint32_t each = left; each; each &= each - 1)
                same |= uint32_t{at[std::countr_zero(each)] == at[std::countr_zero(left)]}
                        << std::countr_zero(each);
            turns = std::max(turns, static_cast<uint64_t>(std::popcount(same)));
            left &= ~same;
        }
        counts_.atomic_turns += turns;
        return;
    }
    const bool store = seen.access == Watched::store;
    if (seen.space == Space::global) return global(at, lanes, seen.bytes, store);
    if (seen.space == Space::shared) return shared(at, lanes, seen.bytes);
    if (seen.space == Space::local) return local(lanes, seen.bytes);
    uint32_t in_shared = 0, in_local = 0, in_global = 0;  // generic addresses name their space
    for (uint32_t left = lanes; left; left &= left - 1) {
        const int i = std::countr_zero(left);
        const uint64_t window = at[i] >> kWindowShift;
        (window == kSharedWindow >> kWindowShift  ? in_shared
         : window == kLocalWindow >> kWindowShift ? in_local
                                                  : in_global) |= 1u << i;
    }
    if (in_global) global(at, in_global, seen.bytes, store);
    if (in_shared) shared(at, in_shared, seen.bytes);
    if (in_local) local(in_local, seen.bytes);
}

void Watcher::global(const uint64_t* addresses, uint32_t lanes, uint32_t bytes, bool store) {
    uint64_t sectors[kLanes];
    uint32_t parts[kLanes];  // bytes of each, one bit a byte
    uint32_t count = 0;
    const uint32_t whole = bytes >= kSector ? ~0u : (1u << bytes) - 1;
    for (uint32_t left = lanes; left; left &= left - 1) {
        const uint64_t address = addresses[std::countr_zero(left)], sector = address / kSector;
        uint32_t n = count;
        while (n > 0 && sectors[n - 1] != sector) --n;
        if (!n) sectors[count] = sector, parts[count] = 0, n = ++count;
        parts[n - 1] |= whole << address % kSector;  // an access that is no fault lies in one sector
    }
    uint64_t distinct = 0;
    for (uint32_t n = 0; n < count; ++n) distinct += static_cast<uint64_t>(std::popcount(parts[n]));
    const uint64_t asked = uint64_t{bytes} * static_cast<uint64_t>(std::popcount(lanes));
    ++(store ? counts_.store_requests : counts_.load_requests);
    (store ? counts_.store_bytes : counts_.load_bytes) += asked;
    (store ? counts_.store_distinct : counts_.load_distinct) += distinct;
    (store ? counts_.store_sectors : counts_.load_sectors) += count;
}

void Watcher::shared(const uint64_t* addresses, uint32_t lanes, uint32_t bytes) {
    constexpr uint32_t kMostWords = kLanes * 4;
    uint64_t words[kMostWords];
    uint32_t count = 0;
    for (uint32_t left = lanes; left; left &= left - 1) {
        const uint64_t address = addresses[std::countr_zero(left)];
        for (uint64_t word = address / kWord; word * kWord < address + bytes && count < kMostWords; ++word)
            words[count++] = word;
    }
    std::sort(words, words + count);
    count = static_cast<uint32_t>(std::unique(words, words + count) - words);
    uint32_t of_bank[kBanks] = {};
    for (uint32_t n = 0; n < count; ++n) ++of_bank[words[n] % kBanks];
    ++counts_.shared_requests;
    counts_.shared_bytes += uint64_t{bytes} * static_cast<uint64_t>(std::popcount(lanes));
    counts_.shared_passes += *std::max_element(of_bank, of_bank + kBanks);
    counts_.shared_least += (count + kBanks - 1) / kBanks;
}

void Watcher::local(uint32_t lanes, uint32_t bytes) {
    ++counts_.local_requests;
    counts_.local_bytes += uint64_t{bytes} * static_cast<uint64_t>(std::popcount(lanes));
}

}  // namespace gpukernel::simgpu::profile
