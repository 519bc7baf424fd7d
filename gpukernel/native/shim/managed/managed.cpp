#include "shim/managed/managed.h"

#include <algorithm>

#include "libcuda/library.h"
#include "shim/managed/page_faults.h"
#include "shim/managed/pages.h"
#include "shim/memory/memory.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

std::atomic<int> managed_allocations{0};

using wire::DriverCall;

namespace {
constexpr size_t MOST_READ = (4 << 20) / BLOCK;     // blocks fetched at one touch,
constexpr size_t MOST_WRITTEN = (1 << 20) / BLOCK;  // and taken for written

GPUKERNEL_STATIC_THREAD_LOCAL bool holds_lock = false;
}  // namespace

Managed& managed() {
    static Managed* const instance = new Managed;  // threads may be inside at exit
    return *instance;
}

bool holds_managed() { return holds_lock; }
ManagedLock::ManagedLock(std::mutex& mutex) : lock_(mutex) { holds_lock = true; }
ManagedLock::~ManagedLock() {
    if (lock_.owns_lock()) holds_lock = false;
}

void DeviceWork::everything(Connection& connection, CUstream stream) {
    lock_ = ManagedLock(managed().mutex);
    Progress& progress = managed().progress[&connection];
    submitted(connection, stream);
    if (has_mirrors()) send_mirrors(connection);
    if (progress.here.empty()) return;
    watch_faults();
    bool sent = false;
    for (ManagedAllocation* a : std::vector<ManagedAllocation*>(progress.here.begin(), progress.here.end()))
        sent |= settle(*a, 0, a->blocks.size(), true);
    if (sent) before(connection, stream);
}

void DeviceWork::some(Connection& connection, CUstream stream, std::initializer_list<MemoryUse> uses) {
    lock_ = ManagedLock(managed().mutex);
    bool sent = false;
    for (const MemoryUse& use : uses) {
        if (has_mirrors() && use.bytes && send_mirror(connection, use)) {
            submitted(connection, stream);
            if (!stream) unfinished_ = &connection;
        }
        ManagedAllocation* a = managed().find(use.address);
        if (!a || &a->connection() != &connection || !use.bytes) continue;
        const uint64_t inside = use.address - a->address;
        const uint64_t last = std::min<uint64_t>(use.bytes, a->room - inside) - 1;
        watch_faults();
        if (use.writes) submitted(connection, stream);
        sent |= settle(*a, a->block(use.address), a->block(use.address + last) + 1, use.writes);
    }
    if (sent) before(connection, stream);
}

// Synchronous copies and fills of host memory are done when they return.
void DeviceWork::finish() {
    {
        const ManagedLock over(std::move(lock_));
    }
    cuStreamSynchronize(nullptr);
}

DeviceWait::DeviceWait(Connection& connection, std::optional<CUstream> stream)
    : of_(connection), known_(true), requests_(requests_so_far(connection)) {
    if (stream) stream_ = number_of(connection, *stream);
    if (!has_managed()) return;
    ManagedLock lock(managed().mutex);
    const Progress& progress = managed().progress[&connection];
    // A wait for one stream is a wait for all work where no other stream has any.
    for (uint64_t other : progress.streams)
        if (stream_ && other != *stream_) return;
    connection_ = &connection;
    submitted_ = progress.submitted;
}

CUresult DeviceWait::over(CUresult result) const {
    if (result != CUDA_SUCCESS) return result;
    if (known_ && stream_)
        note_stream(of_, *stream_, requests_);
    else if (known_)
        note_idle(of_, requests_);
    if (!has_managed() || (!connection_ && !has_mirrors())) return result;
    watch_faults();
    ManagedLock lock(managed().mutex);
    Progress& progress = managed().progress[&of_];
    if (connection_) progress.finished = std::max(progress.finished, submitted_);
    fetch_mirrors(of_);
    if (!connection_ || progress.submitted != submitted_) return result;  // another thread has submitted more
    progress.streams.clear();
    fetch_expected(*connection_);
    return result;
}

std::optional<CUresult> waited_here(Connection& connection) {
    if (has_mirrors()) return std::nullopt;
    watch_faults();
    ManagedLock lock(managed().mutex);
    if (!is_over(connection)) return std::nullopt;
    Progress& progress = managed().progress[&connection];
    progress.finished = progress.submitted;
    progress.streams.clear();
    fetch_expected(connection);
    return CUDA_SUCCESS;
}

Connection* managed_at(uint64_t address) {
    if (!has_managed() || holds_lock) return nullptr;
    ManagedLock lock(managed().mutex);
    if (const Mirror* mirror = managed().find_mirror(address)) return &mirror->device->connection;
    const ManagedAllocation* found = managed().find(address);
    return found ? &found->connection() : nullptr;
}

CUresult end_managed(Connection& connection, const std::function<CUresult()>& end) {
    ManagedLock lock(managed().mutex);
    const CUresult result = end();
    if (result == CUDA_SUCCESS) forget(connection);
    return result;
}

bool serve_fault(uint64_t address, std::optional<bool> writing, bool may_fetch) {
    ManagedLock lock(managed().mutex);
    ManagedAllocation* found = managed().find(address);
    if (!found) return false;
    ManagedAllocation& a = *found;
    const size_t block = a.block(address);
    const bool known_read = writing && !*writing;
    if (a.blocks[block] == BlockState::stale) {
        if (!may_fetch) return complain(IN_A_CALL), false;
        if (!fetch(a, block, std::min(a.read.end(block, MOST_READ), a.blocks.size()))) return true;
        if (!writing || known_read) return true;
    }
    // The page was readable and is written now; or another thread's fault came first and was served.
    size_t end = block + 1;
    BlockState state = a.blocks[block];
    if (state == BlockState::clean && !known_read) {
        const size_t most = std::min(a.written.end(block, MOST_WRITTEN), a.blocks.size());
        while (end < most && a.blocks[end] == BlockState::clean) ++end;
        state = BlockState::dirty;
    }
    if (!set(a, block, end, state)) take_over(a);
    return true;
}

std::optional<CUresult> managed_copy(Connection& connection, CUdeviceptr to, CUdeviceptr from, uint64_t bytes,
                                     bool to_device, CUstream stream) {
    if (!has_managed() || !bytes) return std::nullopt;
    bring_home(to_device ? from : to, bytes);
    if (auto done =
            copy_here(connection, to, from, bytes, to_device ? Ends::host_to_device : Ends::device_to_host))
        return done;
    ManagedAllocation *target, *source;
    bool mirrored = false;
    {
        ManagedLock lock(managed().mutex);
        target = managed().find(to), source = managed().find(from);
        mirrored = managed().find_mirror(to_device ? to : from) != nullptr;
        ManagedAllocation* here = to_device ? source : target;
        if (here && &here->connection() != &connection) {
            // The other device's data goes through this process's pages.
            if (!managed().find(to_device ? from : to, bytes)) return CUDA_ERROR_INVALID_VALUE;
            const uint64_t inside = (to_device ? from : to) - here->address;
            const size_t first = here->block(here->address + inside),
                         end = here->block(here->address + inside + bytes - 1) + 1;
            if (!here->lost && !fetch(*here, first, end)) return CUDA_ERROR_UNKNOWN;
            if (!to_device) set(*here, first, end, BlockState::dirty);
            if (ManagedAllocation* there = to_device ? target : source; there && !there->lost)
                settle(*there, 0, there->blocks.size(), to_device), submitted(connection, stream);
            return to_device ? write_to_device(connection, to, here->view + inside, bytes, stream)
                             : read_from_device(connection, here->view + inside, from, bytes, stream);
        }
        if (here && !managed().find(to_device ? from : to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    }
    if (!target && !source && !mirrored) return std::nullopt;
    const DeviceWork work(connection, stream, {{to, bytes, true}, {from, bytes, false}});
    if (to_device ? source : target) {  // both sides are the device's
        const uint64_t of = stream_name(connection, stream);
        Request request(connection, DriverCall::cuMemcpyDtoDAsync_v2);
        request.put<uint64_t>(to), request.put<uint64_t>(from), request.put<uint64_t>(bytes);
        request.put(of);
        return request.queue();
    }
    return to_device ? write_to_device(connection, to, at(from), bytes, stream)
                     : read_from_device(connection, at(to), from, bytes, stream);
}

}  // namespace gpukernel::shim
