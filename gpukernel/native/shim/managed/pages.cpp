#include "shim/managed/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "shim/memory/memory.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

namespace {
using wire::DriverCall;

constexpr uint64_t MOST_AT_ONCE = 256 << 10;  // of small allocations, after a wait

struct Part {
    uint64_t from, to;
};

int protection(BlockState state) {
    return state == BlockState::stale   ? PROT_NONE
           : state == BlockState::clean ? PROT_READ
                                        : PROT_READ | PROT_WRITE;
}
}  // namespace

void owe(Connection& connection, CUresult error) {
    std::lock_guard lock(connection.mutex);
    if (connection.deferred_error == CUDA_SUCCESS) connection.deferred_error = error;
}

bool set(ManagedAllocation& a, size_t first, size_t end, BlockState state) {
    if (first >= end) return true;
    const uint64_t from = a.begin(first), to = a.end(end - 1);
    if (::mprotect(at(a.address + from), to - from, protection(state)) != 0) return false;
    std::fill(a.blocks.begin() + first, a.blocks.begin() + end, state);
    auto& here = managed().progress[&a.connection()].here;
    if (state != BlockState::stale)
        here.insert(&a);
    else if (std::all_of(a.blocks.begin(), a.blocks.end(),
                         [](BlockState s) { return s == BlockState::stale; }))
        here.erase(&a);
    return true;
}

// --- to the device ---

namespace {
void add(std::vector<Part>& parts, uint64_t from, uint64_t to) {
    if (from >= to) return;
    if (!parts.empty() && parts.back().to == from)
        parts.back().to = to;
    else
        parts.push_back({from, to});
}

// Adds the pages of an untracked block that the file holds, which are those that were written.
void add_touched(std::vector<Part>& parts, const ManagedAllocation& a, uint64_t from, uint64_t to) {
    if (!managed().has_file() || a.file != managed().identity) return add(parts, from, to);
    const auto end = static_cast<off_t>(a.offset + to);
    for (auto at = static_cast<off_t>(a.offset + from); at < end;) {
        const off_t data = ::lseek(managed().file, at, SEEK_DATA);
        if (data < 0 && errno != ENXIO) return add(parts, from, to);  // a kernel that cannot tell
        if (data < 0 || data >= end) return;
        const off_t hole = std::min<off_t>(::lseek(managed().file, data, SEEK_HOLE), end);
        if (hole <= data) return add(parts, from, to);
        add(parts, data - a.offset, hole - a.offset);
        at = hole;
    }
}

void add_difference(std::vector<Part>& parts, const ManagedAllocation& a) {
    const char *now = a.view, *then = a.twin.data();
    const uint64_t bytes = a.twin.size();
    const uint64_t from = std::mismatch(now, now + bytes, then).first - now;
    if (from == bytes) return;
    uint64_t to = bytes;
    while (now[to - 1] == then[to - 1]) --to;
    add(parts, from, to);
}

// Makes the touched ones among the fresh blocks [first, end) clean, and collects their data.
void clean_touched(std::vector<Part>& parts, ManagedAllocation& a, size_t first, size_t end) {
    std::vector<Part> touched;
    add_touched(touched, a, a.begin(first), a.end(end - 1));
    for (const Part& part : touched) {
        const size_t from = std::max(first, part.from / BLOCK), to = (part.to - 1) / BLOCK + 1;
        if (from >= to) continue;
        first = to;
        set(a, from, to, BlockState::clean);
        add_touched(parts, a, a.begin(from), a.end(to - 1));  // again: no thread can write to it now
    }
}

}  // namespace

bool settle(ManagedAllocation& a, size_t first, size_t end, bool device_writes) {
    if (a.lost) return false;
    const std::vector<BlockState> before = a.blocks;
    std::vector<Part> parts;
    // Read-only before it is read, since another thread may be writing.
    if (device_writes && !set(a, first, end, BlockState::stale)) {
        first = 0, end = a.blocks.size();  // the whole needs no mapping more
        if (!set(a, first, end, BlockState::stale)) return lose(a, CUDA_ERROR_OPERATING_SYSTEM), false;
    }
    for (size_t i = first, next; i < end; i = next) {
        next = i + 1;
        const BlockState was = before[i];
        if (was == BlockState::clean || was == BlockState::stale) continue;
        while (next < end && before[next] == was) ++next;
        if (was == BlockState::fresh && !device_writes) {
            clean_touched(parts, a, i, next);
            continue;
        }
        if (!device_writes) set(a, i, next, BlockState::clean);
        if (was == BlockState::dirty)
            add(parts, a.begin(i), a.end(next - 1));
        else if (was == BlockState::open)
            add_difference(parts, a);
        else
            add_touched(parts, a, a.begin(i), a.end(next - 1));
    }
    if (a.blocks[0] != BlockState::open) a.twin = {};
    for (Part part : parts)
        write_to_device(a.connection(), a.address + part.from, a.view + part.from, part.to - part.from,
                        nullptr);
    return !parts.empty();
}

uint64_t number_of(Connection& connection, CUstream stream) {
    return stream == CU_STREAM_LEGACY ? 0 : stream_name(connection, stream);
}

void submitted(Connection& connection, CUstream stream) {
    Progress& progress = managed().progress[&connection];
    ++progress.submitted;
    progress.streams.insert(number_of(connection, stream));
}

void before(Connection& connection, CUstream stream) {
    if (stream && stream != CU_STREAM_LEGACY) before_any(connection);
}

void before_any(Connection& connection) {
    Request request(connection, DriverCall::cuStreamSynchronize);
    request.put<uint64_t>(0);
    owe(connection, request.send());
}

// --- to the host ---

CUresult catch_up(Connection& connection) {
    Progress& progress = managed().progress[&connection];
    if (progress.finished == progress.submitted) return CUDA_SUCCESS;
    if (!is_idle(connection)) {
        const uint64_t requests = requests_so_far(connection);
        const CUresult result = despite_earlier_errors(connection, [&] {
            Request request(connection, DriverCall::cuCtxSynchronize);
            return request.send();
        });
        if (result != CUDA_SUCCESS) return result;
        note_idle(connection, requests);
    }
    progress.finished = progress.submitted;
    progress.streams.clear();
    return CUDA_SUCCESS;
}

// Marks the device's memory as lost: the program goes on with the data that is here and is told.
void lose(ManagedAllocation& a, CUresult why) {
    owe(a.connection(), why);
    a.lost = true;
    std::fill(a.blocks.begin(), a.blocks.end(), BlockState::dirty);
    ::mprotect(at(a.address), a.room, PROT_READ | PROT_WRITE);
    if (std::exchange(managed().told_of_loss, true)) return;
    complain(
        "managed memory could not be fetched from the slice: what this process finds there is what it was "
        "before the last kernels; the next CUDA call says why.");
}

namespace {
// Reads the stale blocks of [first, end) and passes each run of fetched blocks to `come`.
template <class Function>
bool read_stale(ManagedAllocation& a, size_t first, size_t end, Function come) {
    CUresult error = catch_up(a.connection());
    for (size_t i = first; i < end && error == CUDA_SUCCESS; ++i) {
        if (a.blocks[i] != BlockState::stale) continue;
        size_t last = i;
        while (last < end && a.blocks[last] == BlockState::stale) ++last;
        const uint64_t from = a.begin(i), to = a.end(last - 1);
        error = despite_earlier_errors(a.connection(), [&] {
            return read_from_device(a.connection(), a.view + from, a.address + from, to - from, nullptr);
        });
        if (error == CUDA_SUCCESS) come(i, last);
        i = last;
    }
    if (error != CUDA_SUCCESS) lose(a, error);
    return error == CUDA_SUCCESS;
}
}  // namespace

bool fetch(ManagedAllocation& a, size_t first, size_t end) {
    bool room = true;
    if (!read_stale(a, first, end,
                    [&](size_t from, size_t to) { room = room && set(a, from, to, BlockState::clean); }))
        return false;
    if (!room) take_over(a);
    return !a.lost;
}

void take_over(ManagedAllocation& a) {
    if (!read_stale(a, 0, a.blocks.size(), [](size_t, size_t) {})) return;
    if (!set(a, 0, a.blocks.size(), BlockState::dirty)) lose(a, CUDA_ERROR_OPERATING_SYSTEM);
}

// Called after a wait: fetches small allocations at once, so that system calls find their data, and
// prefetched ones.
void fetch_expected(Connection& connection) {
    uint64_t room = MOST_AT_ONCE;
    for (auto& [address, each] : managed().allocations) {
        ManagedAllocation& a = *each;
        if (&a.connection() != &connection || a.lost) continue;
        if (std::exchange(a.wanted, false)) fetch(a, 0, a.blocks.size());
        if (a.blocks.size() != 1 || a.blocks[0] != BlockState::stale || a.room > room) continue;
        room -= a.room;
        if (!fetch(a, 0, 1)) continue;
        a.twin.assign(a.view, a.view + a.room);
        set(a, 0, 1, BlockState::open);
    }
}

}  // namespace gpukernel::shim
