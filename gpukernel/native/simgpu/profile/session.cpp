// The table of counted launches, and who adds to it.
#include "simgpu/profile/session.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "simgpu/engine.h"

namespace gpukernel::simgpu::profile {
namespace {

constexpr size_t kMostLinesKept = 32768;  // of all kernels together

using Lines = std::map<std::pair<std::string, uint32_t>, uint64_t>;

struct Key {
    const KernelRow* row;
    std::string range;
    uint32_t x, y, z;
    uint64_t shared;
    bool operator<(const Key& other) const {
        return std::tie(row, range, x, y, z, shared) <
               std::tie(other.row, other.range, other.x, other.y, other.z, other.shared);
    }
};
struct Entry {
    uint64_t number = 0;  // in the order of their first launch
    uint32_t registers = 0, resident = 0, most_warps = 0;
    std::string limit;
    uint64_t launches = 0, failed = 0, blocks = 0, nanoseconds = 0;
    KernelCounts counts;
    Lines lines;
};

struct Table {
    std::atomic<bool> counting{false};
    std::mutex mutex;
    uint64_t generation = 0, without_room = 0;
    std::map<Key, Entry> entries;
    size_t room = kMostLinesKept;
};
Table& table() {
    static Table* const only = new Table;  // threads may outlive main
    return *only;
}

void add_lines(Lines& to, const Lines& lines, size_t& room) {
    for (const auto& [line, times] : lines)
        if (const auto found = to.find(line); found != to.end())
            found->second += times;
        else if (room)
            to.emplace(line, times), --room;
}

// The line of the source, or of the PTX where that names none.
std::pair<std::string, uint32_t> line_of(const Function& function, const Op& op) {
    const SourceLine* source = nullptr;
    for (const SourceLine& one : function.sources)
        if (one.ptx_line <= op.line) source = &one;
    if (!source) return {"", op.line};
    return {source->file.substr(source->file.rfind('/') + 1), source->line};
}

std::vector<LineCount> most_of(const Lines& lines) {
    std::vector<LineCount> found;
    for (const auto& [line, times] : lines) found.push_back({line.first, line.second, times});
    std::stable_sort(found.begin(), found.end(), [](const LineCount& one, const LineCount& other) {
        return one.instructions > other.instructions;
    });
    found.resize(std::min(found.size(), MOST_LINES));
    return found;
}

}  // namespace

bool counting() { return table().counting.load(std::memory_order_relaxed); }

CountedLaunch::CountedLaunch(const Function& kernel, const Launch& launch, uint64_t generation)
    : kernel_(kernel), launch_(launch), generation_(generation) {}

std::unique_ptr<CountedLaunch> CountedLaunch::begin(const Function& kernel, const Launch& launch) {
    if (!counting()) return nullptr;
    std::lock_guard lock(table().mutex);
    return std::unique_ptr<CountedLaunch>(new CountedLaunch(kernel, launch, table().generation));
}

void CountedLaunch::add(const Watcher& watcher) {
    Lines lines;
    for (const auto& [function, times] : watcher.operations())
        for (size_t n = 0; n < times.size(); ++n)
            if (times[n]) lines[line_of(*function, function->code[n])] += times[n];
    std::lock_guard lock(mutex_);
    counts_.add(watcher.counts());
    blocks_ += watcher.blocks();
    size_t room = kMostLinesKept;
    add_lines(lines_, lines, room);
}

void CountedLaunch::end(uint64_t nanoseconds, bool failed) {
    const Dim3& block = launch_.block;
    const uint64_t shared = uint64_t{kernel_.info.static_shared_bytes} + launch_.dynamic_shared_bytes;
    Key key{&row_of(kernel_), launch_.range, block.x, block.y, block.z, shared};
    Table& all = table();
    std::lock_guard lock(all.mutex);
    if (generation_ != all.generation) return;  // begun anew since
    auto at = all.entries.find(key);
    if (at == all.entries.end()) {
        if (all.entries.size() == MOST_PROFILES) {
            ++all.without_room;
            return;
        }
        at = all.entries.emplace(std::move(key), Entry{}).first;
        at->second.number = all.entries.size();
    }
    Entry& entry = at->second;
    entry.registers = kernel_.info.registers;
    entry.resident = launch_.resident_blocks, entry.most_warps = launch_.most_warps;
    entry.limit = launch_.limit;
    ++entry.launches;
    entry.failed += failed;
    entry.blocks += blocks_;
    entry.nanoseconds += nanoseconds;
    entry.counts.add(counts_);
    add_lines(entry.lines, lines_, all.room);
}

uint64_t control(Profiling what, void (*row)(void* to, const KernelProfile& one), void* to) {
    Table& all = table();
    std::lock_guard lock(all.mutex);
    if (what == Profiling::begin) {
        ++all.generation;
        all.entries.clear();
        all.without_room = 0;
        all.room = kMostLinesKept;
    }
    if (what != Profiling::read) all.counting = what == Profiling::begin;
    std::vector<std::pair<uint64_t, const std::pair<const Key, Entry>*>> order;
    for (const auto& each : all.entries) order.emplace_back(each.second.number, &each);
    std::sort(order.begin(), order.end());
    for (const auto& [number, each] : order) {
        const auto& [key, entry] = *each;
        const std::string reason = key.row->reason();
        const std::vector<LineCount> lines = most_of(entry.lines);
        row(to, {key.row->name,
                 key.range,
                 reason,
                 key.row->compiled,
                 {key.x, key.y, key.z},
                 entry.registers,
                 static_cast<uint32_t>(key.shared),
                 entry.resident,
                 entry.most_warps,
                 entry.limit,
                 entry.launches,
                 entry.failed,
                 entry.blocks,
                 entry.nanoseconds,
                 entry.counts,
                 lines.data(),
                 lines.size()});
    }
    return all.without_room;
}

}  // namespace gpukernel::simgpu::profile
