#include "managed.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "capture.h"
#include "managed_advice.h"
#include "memory.h"
#include "page_faults.h"
#include "virtual_memory.h"

namespace gpukernel::shim {

std::atomic<int> managed_allocations{0};

namespace {
using Operation = wire::VirtualMemory;
using wire::Call;

constexpr uint64_t PAGE = 4096, UNIT = 2 << 20;
constexpr uint64_t BLOCK = 64 << 10;
constexpr uint64_t SMALL = UNIT / 2;          // shares a range with others
constexpr size_t WIDEST = (4 << 20) / BLOCK;  // blocks fetched at one touch
constexpr uint64_t MOST_AT_ONCE = 256 << 10;  // of small allocations, after a wait

uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }
void* at(uint64_t address) { return reinterpret_cast<void*>(address); }

enum class State : uint8_t { fresh, clean, dirty, open, stale };

// Addresses that both sides have, with the device's memory at the worker; one or several allocations.
struct Range {
    Connection* connection;
    CUdeviceptr address;
    uint64_t bytes, handle;
    std::map<CUdeviceptr, uint64_t> gaps;
    CUdeviceptr used_up_to;  // behind it the device's memory is as it came
};

struct Allocation {
    Range* range;
    Device* device;
    CUdeviceptr address;
    uint64_t bytes, room;
    char* view;       // the shim's own
    uint64_t offset;  // in the file
    std::vector<State> blocks;
    std::vector<char> twin;  // of an open one
    size_t next = 0, window = 1;
    bool wanted = false;  // by cuMemPrefetchAsync to the host
    bool lost = false;    // the device's memory is gone
    ManagedAdvice advice;

    Connection& connection() const { return *range->connection; }
    size_t block(CUdeviceptr at) const { return (at - address) / BLOCK; }
    uint64_t begin(size_t block) const { return block * BLOCK; }
    uint64_t end(size_t block) const { return std::min((block + 1) * BLOCK, room); }
};

// Of one connection: how far the host may trust what it has.
struct Progress {
    uint64_t submitted = 0, finished = 0;  // work that may have changed managed memory
    std::set<CUstream> streams;            // where it runs
    std::set<Allocation*> here;            // allocations with a block that is not stale
};

struct Managed {
    std::mutex mutex;
    int file = -1;
    uint64_t file_bytes = 0;
    std::map<CUdeviceptr, std::unique_ptr<Allocation>> allocations;
    std::vector<std::unique_ptr<Range>> ranges;
    std::map<Connection*, Progress> progress;
    bool told_of_loss = false;

    Allocation* find(CUdeviceptr address) {
        auto it = allocations.upper_bound(address);
        if (it == allocations.begin()) return nullptr;
        Allocation* found = std::prev(it)->second.get();
        return address - found->address < found->room ? found : nullptr;
    }
    Allocation* find(CUdeviceptr address, uint64_t bytes) {
        Allocation* found = find(address);
        const uint64_t inside = found ? address - found->address : 0;
        return found && inside < found->bytes && bytes <= found->bytes - inside ? found : nullptr;
    }
};
Managed& managed() {
    static Managed* const instance = new Managed;  // threads may be inside at exit
    return *instance;
}
thread_local bool holding = false;

// For the next call to tell.
void owe(Connection& connection, CUresult error) {
    std::lock_guard lock(connection.mutex);
    if (connection.owed == CUDA_SUCCESS) connection.owed = error;
}
CUresult with_debts(Connection& connection, CUresult result) {
    std::lock_guard lock(connection.mutex);
    return result == CUDA_SUCCESS ? std::exchange(connection.owed, CUDA_SUCCESS) : result;
}

// --- what the program may do with a block ---

int protection(State state) {
    return state == State::stale ? PROT_NONE : state == State::clean ? PROT_READ : PROT_READ | PROT_WRITE;
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

struct Part {
    uint64_t from, to;
};
void add(std::vector<Part>& parts, uint64_t from, uint64_t to) {
    if (from >= to) return;
    if (!parts.empty() && parts.back().to == from)
        parts.back().to = to;
    else
        parts.push_back({from, to});
}

// What the file holds of a block that was never tracked: the pages that somebody touched.
void add_touched(std::vector<Part>& parts, const Allocation& a, uint64_t from, uint64_t to) {
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

// Sends what was written here and says how blocks are from then on; true where something was sent.
bool settle(Allocation& a, size_t first, size_t end, bool device_writes) {
    if (a.lost) return false;
    const std::vector<State> before = a.blocks;
    std::vector<Part> parts;
    // No longer writable before it is read: another thread may be writing.
    if (device_writes) set(a, first, end, State::stale);
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

void submitted(Connection& connection, CUstream stream) {
    Progress& progress = managed().progress[&connection];
    ++progress.submitted;
    progress.streams.insert(stream == CU_STREAM_LEGACY ? nullptr : stream);
}

// Host data went by the legacy stream, for which a stream of its own may not wait.
void before_others(Connection& connection, CUstream stream, bool sent) {
    if (!sent || !stream || stream == CU_STREAM_LEGACY) return;
    Request request(connection, Call::cuStreamSynchronize);
    request.put<uint64_t>(0);
    owe(connection, request.send());
}

// --- to the host ---

// The answer may be the error of a call that nobody waited for: that is the program's to hear, and no reason
// not to go on.
template <class Function>
CUresult despite_earlier_errors(Connection& connection, Function function) {
    const CUresult result = function();
    if (result == CUDA_SUCCESS || result == GONE) return result;
    owe(connection, result);
    return function();
}

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

// Stale blocks of [first, end) become clean; the others stay as they are.
bool fetch(Allocation& a, size_t first, size_t end) {
    CUresult error = catch_up(a.connection());
    for (size_t i = first; i < end && error == CUDA_SUCCESS; ++i) {
        if (a.blocks[i] != State::stale) continue;
        size_t last = i;
        while (last < end && a.blocks[last] == State::stale) ++last;
        const uint64_t from = a.begin(i), to = a.end(last - 1);
        error = despite_earlier_errors(a.connection(), [&] {
            return read_from_device(a.connection(), a.view + from, a.address + from, to - from, nullptr);
        });
        if (error == CUDA_SUCCESS && !set(a, i, last, State::clean)) error = CUDA_ERROR_OPERATING_SYSTEM;
        i = last;
    }
    if (error != CUDA_SUCCESS) lose(a, error);
    return error == CUDA_SUCCESS;
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

// --- ranges and allocations ---

void give_back(Range& range) {
    ask(*range.connection, Operation::unmap, {range.address, range.bytes});
    ask(*range.connection, Operation::release, {range.handle});
    ask(*range.connection, Operation::free, {range.address, range.bytes});
    free_here(range.address, range.bytes);
}

CUresult make_range(Connection& connection, uint64_t bytes, std::unique_ptr<Range>& made) {
    CUdeviceptr address = 0;
    uint64_t handle = 0;
    // The memory first: that is what there may be too little of.
    CUresult error = ask(connection, Operation::create, {bytes}, &handle);
    if (error != CUDA_SUCCESS) return error;
    error = reserve_on_both_sides(connection, bytes, UNIT, 0, address);
    if (error == CUDA_SUCCESS) {
        error = ask(connection, Operation::map, {address, bytes, 0, handle});
        if (error == CUDA_SUCCESS)
            error =
                ask(connection, Operation::set_access, {address, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
        if (error == CUDA_SUCCESS) {
            made = std::make_unique<Range>(
                Range{&connection, address, bytes, handle, {{address, bytes}}, address});
            return error;
        }
        ask(connection, Operation::unmap, {address, bytes});
        ask(connection, Operation::free, {address, bytes});
        free_here(address, bytes);
    }
    ask(connection, Operation::release, {handle});
    return error;
}

CUdeviceptr take(Range& range, uint64_t bytes) {
    for (auto gap = range.gaps.begin(); gap != range.gaps.end(); ++gap) {
        if (gap->second < bytes) continue;
        const auto [address, room] = *gap;
        range.gaps.erase(gap);
        if (room > bytes) range.gaps[address + bytes] = room - bytes;
        return address;
    }
    return 0;
}

void put_back(Range& range, CUdeviceptr address, uint64_t bytes) {
    auto it = range.gaps.emplace(address, bytes).first;
    if (auto next = std::next(it); next != range.gaps.end() && it->first + it->second == next->first) {
        it->second += next->second;
        range.gaps.erase(next);
    }
    if (it == range.gaps.begin()) return;
    if (auto before = std::prev(it); before->first + before->second == it->first) {
        before->second += it->second;
        range.gaps.erase(it);
    }
}

void drop_if_unused(Range* range) {
    if (range->gaps.size() != 1 || range->gaps.begin()->second != range->bytes) return;
    give_back(*range);
    std::erase_if(managed().ranges, [&](const auto& each) { return each.get() == range; });
}

bool map_pages(Allocation& a) {
    Managed& m = managed();
    if (m.file < 0) m.file = ::memfd_create("gpukernel-managed", MFD_CLOEXEC);
    a.offset = m.file_bytes;
    if (m.file < 0 || ::ftruncate(m.file, static_cast<off_t>(a.offset + a.room)) != 0) return false;
    m.file_bytes += a.room;
    const auto offset = static_cast<off_t>(a.offset);
    void* view = ::mmap(nullptr, a.room, PROT_READ | PROT_WRITE, MAP_SHARED, m.file, offset);
    if (view == MAP_FAILED) return false;
    if (::mmap(at(a.address), a.room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, m.file, offset) ==
        MAP_FAILED) {
        ::munmap(view, a.room);
        return false;
    }
    a.view = static_cast<char*>(view);
    for (void* each : {view, at(a.address)})
        for (int advice : {MADV_DONTFORK, MADV_DONTDUMP}) ::madvise(each, a.room, advice);
    return true;
}

void unmap_pages(const Allocation& a) {
    ::munmap(a.view, a.room);
    ::mmap(at(a.address), a.room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    ::fallocate(managed().file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(a.offset),
                static_cast<off_t>(a.room));
}

CUresult allocate(Device& device, uint64_t bytes, CUdeviceptr& address) {
    Managed& m = managed();
    Connection& connection = device.connection;
    if (bytes > device.facts.memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t room = round_up(bytes, PAGE);
    Range* range = nullptr;
    CUdeviceptr place = 0;
    if (room <= SMALL)
        for (auto& each : m.ranges)
            if (each->connection == &connection && each->bytes == UNIT && (place = take(*each, room))) {
                range = each.get();
                break;
            }
    if (!range) {
        std::unique_ptr<Range> made;
        if (CUresult error = make_range(connection, round_up(room, UNIT), made); error != CUDA_SUCCESS)
            return error;
        range = made.get();
        m.ranges.push_back(std::move(made));
        place = take(*range, room);
    }
    auto fresh = std::make_unique<Allocation>();
    fresh->range = range, fresh->device = &device;
    fresh->address = place, fresh->bytes = bytes, fresh->room = room;
    if (!map_pages(*fresh)) {
        put_back(*range, place, room);
        drop_if_unused(range);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (place < range->used_up_to) {  // somebody's before; the host's pages are zero
        Request request(connection, Call::cuMemsetD8_v2);
        request.put<CUdeviceptr>(place), request.put<unsigned char>(0), request.put<size_t>(room);
        request.queue();
    }
    range->used_up_to = std::max(range->used_up_to, place + room);
    fresh->blocks.assign((room + BLOCK - 1) / BLOCK, State::fresh);
    m.progress[&connection].here.insert(fresh.get());
    m.allocations[place] = std::move(fresh);
    ++managed_allocations;
    address = place;
    return CUDA_SUCCESS;
}

CUresult release(Allocation& a) {
    Managed& m = managed();
    Range* range = a.range;
    const CUresult result = a.lost ? CUDA_SUCCESS : catch_up(a.connection());
    m.progress[range->connection].here.erase(&a);
    unmap_pages(a);
    put_back(*range, a.address, a.room);
    m.allocations.erase(a.address);
    --managed_allocations;
    drop_if_unused(range);
    return result;
}

CUmemLocation device_of(const Allocation& a) { return {CU_MEM_LOCATION_TYPE_DEVICE, a.device->index}; }
bool exists(CUmemLocation place) {
    return place.type == CU_MEM_LOCATION_TYPE_DEVICE ? device_at(place.id) != nullptr
                                                     : place.type != CU_MEM_LOCATION_TYPE_INVALID;
}
}  // namespace

// --- the seam to the rest of the shim ---

bool holds_managed() { return holding; }
ManagedLock::ManagedLock(std::mutex& mutex) : lock_(mutex) { holding = true; }
ManagedLock::~ManagedLock() {
    if (lock_.owns_lock()) holding = false;
}

void DeviceWork::everything(Connection& connection, CUstream stream) {
    lock_ = ManagedLock(managed().mutex);
    Progress& progress = managed().progress[&connection];
    submitted(connection, stream);
    if (progress.here.empty()) return;
    watch_faults();
    bool sent = false;
    for (Allocation* a : std::vector<Allocation*>(progress.here.begin(), progress.here.end()))
        sent |= settle(*a, 0, a->blocks.size(), true);
    before_others(connection, stream, sent);
}

void DeviceWork::some(Connection& connection, CUstream stream, std::initializer_list<Use> uses) {
    lock_ = ManagedLock(managed().mutex);
    bool sent = false;
    for (const Use& use : uses) {
        Allocation* a = managed().find(use.address);
        if (!a || &a->connection() != &connection || !use.bytes) continue;
        const uint64_t inside = use.address - a->address;
        const uint64_t last = std::min<uint64_t>(use.bytes, a->room - inside) - 1;
        watch_faults();
        if (use.writes) submitted(connection, stream);
        sent |= settle(*a, a->block(use.address), a->block(use.address + last) + 1, use.writes);
    }
    before_others(connection, stream, sent);
}

bool is_managed(uint64_t address) {
    if (!has_managed() || holding) return false;
    ManagedLock lock(managed().mutex);
    return managed().find(address) != nullptr;
}

bool serve_fault(uint64_t address, std::optional<bool> writing) {
    if (!has_managed() || holding || Request::reading_memory() || !process()) return false;
    ManagedLock lock(managed().mutex);
    Allocation* found = managed().find(address);
    if (!found) return false;
    Allocation& a = *found;
    const size_t block = a.block(address);
    const bool known_read = writing && !*writing;
    if (a.blocks[block] == State::stale) {
        // Touches in order fetch more and more at one time; any other begins again.
        a.window = block == a.next ? std::min(2 * a.window, WIDEST) : 1;
        const size_t end = std::min(block + a.window, a.blocks.size());
        if (!fetch(a, block, end)) return true;
        a.next = end;
        if (!writing || known_read) return true;
    }
    // Another thread was first, or the page was readable and is written now.
    if (a.blocks[block] == State::clean && !known_read && !set(a, block, block + 1, State::dirty))
        lose(a, CUDA_ERROR_OPERATING_SYSTEM);
    return true;
}

void bring_here(const void* data, size_t bytes) {
    if (!has_managed() || !bytes) return;
    ManagedLock lock(managed().mutex);
    const auto address = reinterpret_cast<uint64_t>(data);
    if (Allocation* a = managed().find(address); a && !a->lost)
        fetch(*a, a->block(address), a->block(std::min<uint64_t>(address + bytes, a->address + a->room) - 1) + 1);
}

std::optional<CUresult> managed_copy(Connection& connection, CUdeviceptr to, CUdeviceptr from, uint64_t bytes,
                                     bool to_device, CUstream stream) {
    if (!has_managed() || !bytes) return std::nullopt;
    Allocation *target, *source;
    {
        ManagedLock lock(managed().mutex);
        target = managed().find(to), source = managed().find(from);
        Allocation* here = to_device ? source : target;
        if (here && &here->connection() != &connection) {
            // Of another device: through this process, whose own pages are good for it.
            if (!managed().find(to_device ? from : to, bytes)) return CUDA_ERROR_INVALID_VALUE;
            const uint64_t inside = (to_device ? from : to) - here->address;
            const size_t first = here->block(here->address + inside),
                         end = here->block(here->address + inside + bytes - 1) + 1;
            if (!here->lost && !fetch(*here, first, end)) return CUDA_ERROR_UNKNOWN;
            if (!to_device) set(*here, first, end, State::dirty);
            if (Allocation* there = to_device ? target : source; there && !there->lost)
                settle(*there, 0, there->blocks.size(), to_device), submitted(connection, stream);
            return to_device ? write_to_device(connection, to, here->view + inside, bytes, stream)
                             : read_from_device(connection, here->view + inside, from, bytes, stream);
        }
        if (here && !managed().find(to_device ? from : to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    }
    if (!target && !source) return std::nullopt;
    const DeviceWork work(connection, stream, {{to, bytes, true}, {from, bytes, false}});
    if (to_device ? source : target) {  // both sides are the device's
        Request request(connection, Call::cuMemcpyDtoDAsync_v2);
        request.put<uint64_t>(to), request.put<uint64_t>(from), request.put<uint64_t>(bytes);
        request.put(reinterpret_cast<uint64_t>(stream));
        return request.queue();
    }
    return to_device ? write_to_device(connection, to, at(from), bytes, stream)
                     : read_from_device(connection, at(to), from, bytes, stream);
}

namespace {
struct Answer {  // of one attribute, and how many bytes of it the program gets
    uint64_t value = 0;
    size_t bytes = 0;  // 0: no such attribute
};
Answer attribute_of(const Allocation& a, CUpointer_attribute attribute, CUdeviceptr address) {
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            return {reinterpret_cast<uint64_t>(a.device->primary.get()), 8};
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return {CU_MEMORYTYPE_DEVICE, 4};
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            return {address, 8};
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            return {a.offset + 1, 8};  // no other allocation has ever had it
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        case CU_POINTER_ATTRIBUTE_MAPPED:
            return {1, 4};
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            return {static_cast<uint64_t>(a.device->index), 4};
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            return {a.address, 8};
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            return {a.bytes, 8};
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
            return {0, 4};
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
            return {CU_MEM_HANDLE_TYPE_NONE, 8};
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
            return {CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE, 4};
        default:
            return {};
    }
}
}  // namespace

std::optional<CUresult> managed_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
    if (!has_managed()) return std::nullopt;
    Answer answer;
    {
        ManagedLock lock(managed().mutex);
        Allocation* a = managed().find(address, 1);
        if (!a) return std::nullopt;
        answer = attribute_of(*a, attribute, address);
    }
    if (!answer.bytes) return CUDA_ERROR_NOT_SUPPORTED;
    std::memcpy(data, &answer.value, answer.bytes);  // not under the lock: it may be managed memory too
    return CUDA_SUCCESS;
}

// --- calls of codegen/calls.txt that managed memory has a word in ---

using Done = std::optional<CUresult>;

namespace {
// What the worker will find too much is cut to what there is, wherever it begins.
uint64_t box_bytes(size_t pitch, size_t width, size_t height) {
    uint64_t bytes = 0;
    if (!height || __builtin_mul_overflow(pitch, height - 1, &bytes) ||
        __builtin_add_overflow(bytes, width, &bytes))
        return height ? UINT64_MAX : 0;
    return bytes;
}
}  // namespace

Done managed_cuMemFree_v2(Connection&, CUdeviceptr address) {
    ManagedLock lock(managed().mutex);
    auto it = managed().allocations.find(address);
    if (it == managed().allocations.end()) return std::nullopt;
    return release(*it->second);
}

Done managed_cuMemGetAddressRange_v2(Connection&, CUdeviceptr* base, size_t* size, CUdeviceptr address) {
    std::pair<CUdeviceptr, size_t> range;
    {
        ManagedLock lock(managed().mutex);
        Allocation* a = managed().find(address, 1);
        if (!a) return std::nullopt;
        range = {a->address, a->bytes};
    }
    if (base) *base = range.first;
    if (size) *size = range.second;
    return CUDA_SUCCESS;
}

Done managed_cuCtxSynchronize(Connection& connection) {
    ManagedLock lock(managed().mutex);
    Request request(connection, Call::cuCtxSynchronize);
    const CUresult result = request.send();
    if (result == CUDA_SUCCESS) {
        Progress& progress = managed().progress[&connection];
        progress.finished = progress.submitted;
        progress.streams.clear();
        fetch_expected(connection);
    }
    return with_debts(connection, result);
}

Done managed_cuStreamSynchronize(Connection& connection, CUstream stream) {
    ManagedLock lock(managed().mutex);
    Request request(connection, Call::cuStreamSynchronize);
    request.put(reinterpret_cast<uint64_t>(stream));
    const CUresult result = request.send();
    if (result == CUDA_SUCCESS) {
        Progress& progress = managed().progress[&connection];
        progress.streams.erase(stream == CU_STREAM_LEGACY ? nullptr : stream);
        if (progress.streams.empty()) {
            progress.finished = progress.submitted;
            fetch_expected(connection);
        }
    }
    return with_debts(connection, result);
}

// What each of them uses.
DeviceWork managed_cuMemcpyDtoD_v2(Connection& c, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return {c, nullptr, {{to, bytes, true}, {from, bytes, false}}};
}
DeviceWork managed_cuMemcpyDtoDAsync_v2(Connection& c, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                        CUstream stream) {
    return {c, stream, {{to, bytes, true}, {from, bytes, false}}};
}
DeviceWork managed_cuMemsetD8_v2(Connection& c, CUdeviceptr to, unsigned char, size_t n) {
    return {c, nullptr, {{to, n, true}}};
}
DeviceWork managed_cuMemsetD16_v2(Connection& c, CUdeviceptr to, unsigned short, size_t n) {
    return {c, nullptr, {{to, n * 2, true}}};
}
DeviceWork managed_cuMemsetD32_v2(Connection& c, CUdeviceptr to, unsigned, size_t n) {
    return {c, nullptr, {{to, n * 4, true}}};
}
DeviceWork managed_cuMemsetD8Async(Connection& c, CUdeviceptr to, unsigned char, size_t n, CUstream stream) {
    return {c, stream, {{to, n, true}}};
}
DeviceWork managed_cuMemsetD16Async(Connection& c, CUdeviceptr to, unsigned short, size_t n,
                                    CUstream stream) {
    return {c, stream, {{to, n * 2, true}}};
}
DeviceWork managed_cuMemsetD32Async(Connection& c, CUdeviceptr to, unsigned, size_t n, CUstream stream) {
    return {c, stream, {{to, n * 4, true}}};
}
DeviceWork managed_cuMemsetD2D8_v2(Connection& c, CUdeviceptr to, size_t pitch, unsigned char, size_t width,
                                   size_t height) {
    return {c, nullptr, {{to, box_bytes(pitch, width, height), true}}};
}
DeviceWork managed_cuMemsetD2D16_v2(Connection& c, CUdeviceptr to, size_t pitch, unsigned short, size_t width,
                                    size_t height) {
    return {c, nullptr, {{to, box_bytes(pitch, width * 2, height), true}}};
}
DeviceWork managed_cuMemsetD2D32_v2(Connection& c, CUdeviceptr to, size_t pitch, unsigned, size_t width,
                                    size_t height) {
    return {c, nullptr, {{to, box_bytes(pitch, width * 4, height), true}}};
}
DeviceWork managed_cuMemsetD2D8Async(Connection& c, CUdeviceptr to, size_t pitch, unsigned char, size_t width,
                                     size_t height, CUstream stream) {
    return {c, stream, {{to, box_bytes(pitch, width, height), true}}};
}
DeviceWork managed_cuMemsetD2D16Async(Connection& c, CUdeviceptr to, size_t pitch, unsigned short,
                                      size_t width, size_t height, CUstream stream) {
    return {c, stream, {{to, box_bytes(pitch, width * 2, height), true}}};
}
DeviceWork managed_cuMemsetD2D32Async(Connection& c, CUdeviceptr to, size_t pitch, unsigned, size_t width,
                                      size_t height, CUstream stream) {
    return {c, stream, {{to, box_bytes(pitch, width * 4, height), true}}};
}

}  // namespace gpukernel::shim

using namespace gpukernel::shim;
using gpukernel::ManagedAdvice;

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
    GPUKERNEL_CURRENT(connection);
    if (!dptr || !bytesize || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    if (capturing())
        if (Captured captured = captured_unsafe(*connection, false)) return *captured;
    CUdeviceptr address = 0;
    CUresult result;
    {
        ManagedLock lock(managed().mutex);
        result = allocate(*context_stack.back()->device, bytesize, address);
    }
    if (result == CUDA_SUCCESS) *dptr = address;  // which may itself be managed memory
    return result;
}

CUresult CUDAAPI cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location,
                                       unsigned int flags, CUstream hStream) {
    GPUKERNEL_CURRENT(connection);
    if (capturing())
        if (Captured captured = captured_refusal(*connection, hStream)) return *captured;
    if (!exists(location)) return CUDA_ERROR_INVALID_DEVICE;
    const bool to_device = location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    Connection* owner;
    {
        ManagedLock lock(managed().mutex);
        Allocation* a = managed().find(devPtr, count);
        if (!a || !count || flags) return CUDA_ERROR_INVALID_VALUE;
        // No other device can have it.
        if (to_device && device_of(*a).id != location.id) return CUDA_ERROR_INVALID_DEVICE;
        a->advice.prefetched = location;
        Progress& progress = managed().progress[&a->connection()];
        a->wanted = !to_device;
        if (!to_device && progress.finished == progress.submitted) fetch_expected(a->connection());
        owner = &a->connection();
    }
    if (to_device) DeviceWork(*owner, hStream, {{devPtr, count, false}});
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream) {
    return cuMemPrefetchAsync_v2(devPtr, count, ManagedAdvice::location(dstDevice), 0, hStream);
}

CUresult CUDAAPI cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                                CUmemLocation location) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    const bool no_place = advice == CU_MEM_ADVISE_SET_READ_MOSTLY ||
                          advice == CU_MEM_ADVISE_UNSET_READ_MOSTLY ||
                          advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
    if (!no_place && !exists(location)) return CUDA_ERROR_INVALID_DEVICE;
    ManagedLock lock(managed().mutex);
    Allocation* a = managed().find(devPtr, count);
    return a && count ? a->advice.take(advice, location) : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device) {
    return cuMemAdvise_v2(devPtr, count, advice, ManagedAdvice::location(device));
}

CUresult CUDAAPI cuMemRangeGetAttribute(void* data, size_t dataSize, CUmem_range_attribute attribute,
                                        CUdeviceptr devPtr, size_t count) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    ManagedAdvice advice;
    {
        ManagedLock lock(managed().mutex);
        Allocation* a = managed().find(devPtr, count);
        if (!a || !count) return CUDA_ERROR_INVALID_VALUE;
        advice = a->advice;
    }
    return advice.tell(data, dataSize, attribute);
}
CUresult CUDAAPI cuMemRangeGetAttributes(void** data, size_t* dataSizes, CUmem_range_attribute* attributes,
                                         size_t numAttributes, CUdeviceptr devPtr, size_t count) {
    if (!data || !dataSizes || !attributes || !numAttributes) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < numAttributes; ++i)
        if (CUresult error = cuMemRangeGetAttribute(data[i], dataSizes[i], attributes[i], devPtr, count);
            error != CUDA_SUCCESS)
            return error;
    return CUDA_SUCCESS;
}

// Whoever it is attached to: a touch here waits for the device either way.
CUresult CUDAAPI cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length,
                                        unsigned int flags) {
    GPUKERNEL_CURRENT(connection);
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
        return CUDA_ERROR_INVALID_VALUE;
    ManagedLock lock(managed().mutex);
    return managed().find(dptr, length) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
