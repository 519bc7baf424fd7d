// The table of kernels by their names and operations.
#include "simgpu/profile/kernel_rows.h"

#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "common/checked.h"
#include "simgpu/exec/block.h"

namespace gpukernel::simgpu::profile {
namespace {

struct Rows {
    std::mutex mutex;
    std::deque<KernelRow> all;  // in the order of their first launch
    std::map<std::pair<std::string, uint64_t>, KernelRow*> known;
    KernelRow others;
};
Rows& rows() {
    static Rows* const only = new Rows;  // threads may outlive main
    return *only;
}

// The same for the same operations, at whatever addresses a module's variables lie.
uint64_t fingerprint(const Function& function) {
    uint64_t hash = std::hash<std::string>{}(function.name);
    const auto mix = [&](uint64_t word) { hash = wrapping_product(hash ^ word, 0x100000001b3); };
    mix(function.register_bytes), mix(function.shared_bytes), mix(function.local_bytes);
    for (const Op& op : function.code) {
        mix(reinterpret_cast<uintptr_t>(op.fn));
        mix(uint64_t{op.dst} << 32 | op.a);
        mix(uint64_t{op.b} << 32 | op.c);
        mix(uint64_t{op.aux} << 32 | op.line);
    }
    return hash;
}

}  // namespace

void KernelRow::say(std::string why) {
    std::lock_guard lock(mutex_);
    compiled = why.empty();
    reason_ = std::move(why);
}

std::string KernelRow::reason() const {
    std::lock_guard lock(mutex_);
    return reason_;
}

KernelRow& row_of(const Function& function) {
    if (KernelRow* row = function.row.load(std::memory_order_acquire)) return *row;
    Rows& table = rows();
    const std::pair key{function.name.substr(0, LONGEST_KERNEL_NAME), fingerprint(function)};
    std::lock_guard lock(table.mutex);
    auto known = table.known.find(key);
    KernelRow* row = known != table.known.end() ? known->second : nullptr;
    if (!row && table.all.size() == MOST_KERNELS) row = &table.others;
    if (!row) {
        row = &table.all.emplace_back();
        row->name = readable(function.name).substr(0, LONGEST_KERNEL_NAME);
        table.known.emplace(key, row);
    }
    function.row.store(row, std::memory_order_release);
    return *row;
}

uint64_t read_kernels(void (*row)(void* to, const KernelUse& one), void* to) {
    Rows& table = rows();
    std::lock_guard lock(table.mutex);
    for (const KernelRow& one : table.all) {
        const std::string reason = one.reason();
        row(to, {one.name, reason, one.compiled, one.launches, one.compiled_launches, one.failed,
                 one.nanoseconds, one.compile_nanoseconds});
    }
    return table.others.launches;
}

}  // namespace gpukernel::simgpu::profile
