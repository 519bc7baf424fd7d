// Copies of managed memory that the program makes itself.
//
// A copy is work of a stream, and managed memory that a stream's work writes is fetched again at the next
// touch: two round trips for each copy of a program whose memory only the processor uses.  Where the device
// has nothing left to do, the order of all streams is the program's own, and where the newest bytes are here,
// too, a copy between the program's pages is what the device would do, at once.
//
// What the program wrote is sent before later work may use it, as always (DeviceWork).  The lock of managed
// memory is held meanwhile, so that no such work is on its way to the device.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "shim/managed/page_faults.h"
#include "shim/managed/pages.h"

namespace gpukernel::shim {

namespace {
// Of memory that the program has not touched, and that would take room here: larger copies go to the device.
constexpr uint64_t MOST_UNTOUCHED = 16 << 20;

// One end of a copy in managed memory.
struct Place {
    ManagedAllocation& a;
    uint64_t inside;    // bytes before it
    size_t first, end;  // blocks
    char* data() const { return a.view + inside; }
};
std::optional<Place> place_of(Connection& connection, CUdeviceptr address, uint64_t bytes) {
    ManagedAllocation* const a = managed().find(address, bytes);
    if (!a || &a->connection() != &connection || a->lost) return std::nullopt;
    return Place{*a, address - a->address, a->block(address), a->block(address + bytes - 1) + 1};
}

bool is_here(const Place& from) {
    for (size_t i = from.first; i < from.end; ++i)
        if (from.a.blocks[i] == BlockState::stale) return false;
    return true;
}

// Whether the program may write there without asking for what is around: a stale block is overwritten whole.
bool may_write(const Place& to, uint64_t bytes) {
    uint64_t untouched = 0;
    for (size_t i = to.first; i < to.end; ++i) {
        const uint64_t begin = to.a.begin(i), end = to.a.end(i);
        if (to.a.blocks[i] == BlockState::fresh) untouched += end - begin;
        if (to.a.blocks[i] == BlockState::stale && (begin < to.inside || end > to.inside + bytes))
            return false;
    }
    return untouched <= MOST_UNTOUCHED;
}

// Before the copy: whoever cannot mark a part of an allocation takes it over whole, with what is stale.
void make_dirty(const Place& to) {
    for (size_t i = to.first, next; i < to.end; i = next) {
        const BlockState was = to.a.blocks[i];
        for (next = i + 1; next < to.end && to.a.blocks[next] == was;) ++next;
        if (was != BlockState::clean && was != BlockState::stale) continue;
        if (!set(to.a, i, next, BlockState::dirty)) return take_over(to.a);
    }
}

// Whether the program's memory begins in a page that is there; one of the device's addresses is none.
bool is_mapped(uint64_t address) {
    static const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    unsigned char resident;
    return address && ::mincore(at(address / page * page), 1, &resident) == 0;
}
}  // namespace

std::optional<CUresult> copy_here(Connection& connection, CUdeviceptr to, CUdeviceptr from, uint64_t bytes,
                                  Ends ends) {
    if (!has_managed() || has_mirrors() || !bytes) return std::nullopt;
    ManagedLock lock(managed().mutex);
    const auto target = place_of(connection, to, bytes), source = place_of(connection, from, bytes);
    if (!target && (ends != Ends::device_to_host || managed().find(to) || !is_mapped(to)))
        return std::nullopt;
    if (!source && (ends != Ends::host_to_device || managed().find(from) || !is_mapped(from)))
        return std::nullopt;
    if ((target && !may_write(*target, bytes)) || (source && !is_here(*source)) || !is_idle(connection))
        return std::nullopt;
    watch_faults();
    if (target) make_dirty(*target);
    std::memmove(target ? target->data() : at(to), source ? source->data() : at(from), bytes);
    return CUDA_SUCCESS;
}

}  // namespace gpukernel::shim
