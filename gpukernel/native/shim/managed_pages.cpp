#include "managed_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "memory.h"
#include "request.h"

namespace gpukernel::shim {

namespace {
using wire::Call;

constexpr uint64_t MOST_AT_ONCE = 256 << 10;  // of small allocations, after a wait

struct Part {
    uint64_t from, to;
};

int protection(State state) {
    return state == State::stale ? PROT_NONE : state == State::clean ? PROT_READ : PROT_READ | PROT_WRITE;
}
}  // namespace

void owe(Connection& connection, CUresult error) {
    std::lock_guard lock(connection.mutex);
    if (connection.owed == CUDA_SUCCESS) connection.owed = error;
}

bool set(Allocation& a, size_t first, size_t end, State state) {
    if (first >= end) return true;
    const uint64_t from = a.begin(first), to = a.end(end - 1);
    if (::mprotect(at(a.address + from), to - from, protection(state)) != 0) return false;
    std::fill(a.blocks.begin() + first, a.blocks.begin() + end, state);
    auto& here = managed().progress[&a.connection()].here;
    if (state != State::stale)
        here.insert(&a);
    else if (std::all_of(a.blocks.begin(), a.blocks.end(), [](State s) { return s == State::stale; }))
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

// What the file holds of a block that was never tracked: the pages that somebody touched.
void add_touched(std::vector<Part>& parts, const Allocation& a, uint64_t from, uint64_t to) {
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

void add_difference(std::vector<Part>& parts, const Allocation& a) {
    const char *now = a.view, *then = a.twin.data();
    const uint64_t bytes = a.twin.size();
    const uint64_t from = std::mismatch(now, now + bytes, then).first - now;
    if (from == bytes) return;
    uint64_t to = bytes;
    while (now[to - 1] == then[to - 1]) --to;
    add(parts, from, to);
}

// Of fresh blocks [first, end): makes those clean that somebody touched, and takes what they hold.
void clean_touched(std::vector<Part>& parts, Allocation& a, size_t first, size_t end) {
    std::vector<Part> touched;
    add_touched(touched, a, a.begin(first), a.end(end - 1));
    for (const Part& part : touched) {
        const size_t from = std::max(first, part.from / BLOCK), to = (part.to - 1) / BLOCK + 1;
        if (from >= to) continue;
        first = to;
        set(a, from, to, State::clean);
        add_touched(parts, a, a.begin(from), a.end(to - 1));  // again: now nobody adds to it
    }
}

}  // namespace

bool settle(Allocation& a, size_t first, size_t end, bool device_writes) {
    if (a.lost) return false;
    const std::vector<State> before = a.blocks;
    std::vector<Part> parts;
    // No longer writable before it is read: another thread may be writing.
    if (device_writes && !set(a, first, end, State::stale)) {
        first = 0, end = a.blocks.size();  // the whole needs no mapping more
        if (!set(a, first, end, State::stale)) return lose(a, CUDA_ERROR_OPERATING_SYSTEM), false;
    }
    for (size_t i = first, next; i < end; i = next) {
        next = i + 1;
        const State was = before[i];
        if (was == State::clean || was == State::stale) continue;
        while (next < end && before[next] == was) ++next;
        if (was == State::fresh && !device_writes) {
            clean_touched(parts, a, i, next);
            continue;
        }
        if (!device_writes) set(a, i, next, State::clean);
        if (was == State::dirty)
            add(parts, a.begin(i), a.end(next - 1));
        else if (was == State::open)
            add_difference(parts, a);
        else
            add_touched(parts, a, a.begin(i), a.end(next - 1));
    }
    if (a.blocks[0] != State::open) a.twin = {};
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
    Request request(connection, Call::cuStreamSynchronize);
    request.put<uint64_t>(0);
    owe(connection, request.send());
}

// --- to the host ---

namespace {
// The answer may be the error of a call that nobody waited for: that is the program's to hear, and no reason
// not to go on.
template <class Function>
CUresult despite_earlier_errors(Connection& connection, Function function) {
    const CUresult result = function();
    if (result == CUDA_SUCCESS || result == GONE) return result;
    owe(connection, result);
    return function();
}

}  // namespace

CUresult catch_up(Connection& connection) {
    Progress& progress = managed().progress[&connection];
    if (progress.finished == progress.submitted) return CUDA_SUCCESS;
    const CUresult result = despite_earlier_errors(connection, [&] {
        Request request(connection, Call::cuCtxSynchronize);
        return request.send();
    });
    if (result != CUDA_SUCCESS) return result;
    progress.finished = progress.submitted;
    progress.streams.clear();
    return result;
}

// Nothing can come from the device any more: the program goes on with what is here and hears of it.
void lose(Allocation& a, CUresult why) {
    owe(a.connection(), why);
    a.lost = true;
    std::fill(a.blocks.begin(), a.blocks.end(), State::dirty);
    ::mprotect(at(a.address), a.room, PROT_READ | PROT_WRITE);
    if (std::exchange(managed().told_of_loss, true)) return;
    complain(
        "managed memory could not be fetched from the slice: what this process finds there is what it was "
        "before the last kernels; the next CUDA call says why.");
}

namespace {
// Reads what is stale of [first, end), and hands each run of blocks that came to `come`.
template <class Function>
bool read_stale(Allocation& a, size_t first, size_t end, Function come) {
    CUresult error = catch_up(a.connection());
    for (size_t i = first; i < end && error == CUDA_SUCCESS; ++i) {
        if (a.blocks[i] != State::stale) continue;
        size_t last = i;
        while (last < end && a.blocks[last] == State::stale) ++last;
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

bool fetch(Allocation& a, size_t first, size_t end) {
    bool room = true;
    if (!read_stale(a, first, end,
                    [&](size_t from, size_t to) { room = room && set(a, from, to, State::clean); }))
        return false;
    if (!room) take_over(a);
    return !a.lost;
}

void take_over(Allocation& a) {
    if (!read_stale(a, 0, a.blocks.size(), [](size_t, size_t) {})) return;
    if (!set(a, 0, a.blocks.size(), State::dirty)) lose(a, CUDA_ERROR_OPERATING_SYSTEM);
}

// After a wait: what is small comes at once, so that system calls find it too, and what was asked for.
void fetch_expected(Connection& connection) {
    uint64_t room = MOST_AT_ONCE;
    for (auto& [address, each] : managed().allocations) {
        Allocation& a = *each;
        if (&a.connection() != &connection || a.lost) continue;
        if (std::exchange(a.wanted, false)) fetch(a, 0, a.blocks.size());
        if (a.blocks.size() != 1 || a.blocks[0] != State::stale || a.room > room) continue;
        room -= a.room;
        if (!fetch(a, 0, 1)) continue;
        a.twin.assign(a.view, a.view + a.room);
        set(a, 0, 1, State::open);
    }
}

}  // namespace gpukernel::shim
