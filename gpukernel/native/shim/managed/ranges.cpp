// The ranges of managed memory that are reserved on both sides, and the allocations in them.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "shim/managed/page_faults.h"
#include "shim/managed/pages.h"
#include "shim/memory/virtual_memory.h"

namespace gpukernel::shim {

namespace {
using Operation = wire::VirtualMemory;
using wire::DriverCall;

constexpr uint64_t PAGE = 4096, UNIT = 2 << 20;
constexpr uint64_t SMALL = UNIT / 2;  // shares a range with others

uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

}  // namespace

bool Managed::has_file() const {
    struct stat found{};
    return file >= 0 && ::fstat(file, &found) == 0 &&
           identity == std::pair<uint64_t, uint64_t>{found.st_dev, found.st_ino};
}

namespace {
void give_back(ManagedRange& range) {
    ask(*range.connection, Operation::unmap, {range.address, range.bytes});
    ask(*range.connection, Operation::release, {range.handle});
    ask(*range.connection, Operation::free, {range.address, range.bytes});
    free_here(range.address, range.bytes);
}

// At `address`, which is reserved here, or anywhere.
CUresult make_range(Connection& connection, uint64_t bytes, std::unique_ptr<ManagedRange>& made,
                    CUdeviceptr address = 0) {
    const bool ours = address != 0;
    uint64_t handle = 0;
    // Memory first, since it is more likely to run out than addresses.
    CUresult error = ask(connection, Operation::create, {bytes}, &handle);
    if (error != CUDA_SUCCESS) return error;
    error = ours ? reserve_there(connection, address, bytes)
                 : reserve_on_both_sides(connection, bytes, UNIT, 0, address);
    if (error == CUDA_SUCCESS) {
        error = ask(connection, Operation::map, {address, bytes, 0, handle});
        if (error == CUDA_SUCCESS)
            error =
                ask(connection, Operation::set_access, {address, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
        if (error == CUDA_SUCCESS) {
            made = std::make_unique<ManagedRange>(
                ManagedRange{&connection, address, bytes, handle, {{address, bytes}}, address});
            return error;
        }
        ask(connection, Operation::unmap, {address, bytes});
        ask(connection, Operation::free, {address, bytes});
        if (!ours) free_here(address, bytes);
    }
    ask(connection, Operation::release, {handle});
    return error;
}

CUdeviceptr take(ManagedRange& range, uint64_t bytes) {
    for (auto gap = range.gaps.begin(); gap != range.gaps.end(); ++gap) {
        if (gap->second < bytes) continue;
        const auto [address, room] = *gap;
        range.gaps.erase(gap);
        if (room > bytes) range.gaps[address + bytes] = room - bytes;
        return address;
    }
    return 0;
}

void put_back(ManagedRange& range, CUdeviceptr address, uint64_t bytes) {
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

void drop_if_unused(ManagedRange* range) {
    if (range->gaps.size() != 1 || range->gaps.begin()->second != range->bytes) return;
    give_back(*range);
    std::erase_if(managed().ranges, [&](const auto& each) { return each.get() == range; });
}

}  // namespace

bool show_pages(const ManagedAllocation& a) {
    if (::mmap(at(a.address), a.room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, managed().file,
               static_cast<off_t>(a.offset)) == MAP_FAILED)
        return false;
    for (void* each : {static_cast<void*>(a.view), at(a.address)})
        for (int advice : {MADV_DONTFORK, MADV_DONTDUMP}) ::madvise(each, a.room, advice);
    return true;
}

bool view_pages(ManagedAllocation& a) {
    Managed& m = managed();
    if (!m.has_file()) {
        struct stat found{};
        m.file = ::memfd_create("gpukernel-managed", MFD_CLOEXEC);
        if (m.file < 0 || ::fstat(m.file, &found) != 0) return false;
        m.identity = {found.st_dev, found.st_ino}, m.file_bytes = 0;
    }
    a.offset = m.file_bytes, a.file = m.identity;
    if (::ftruncate(m.file, static_cast<off_t>(a.offset + a.room)) != 0) return false;
    m.file_bytes += a.room;
    const auto offset = static_cast<off_t>(a.offset);
    void* view = ::mmap(nullptr, a.room, PROT_READ | PROT_WRITE, MAP_SHARED, m.file, offset);
    a.view = view == MAP_FAILED ? nullptr : static_cast<char*>(view);
    return a.view != nullptr;
}

namespace {
bool map_pages(ManagedAllocation& a) {
    if (!view_pages(a)) return false;
    if (show_pages(a)) return true;
    ::munmap(a.view, a.room);
    return false;
}

// Copies the pages that hold something else than zeros.
void copy_pages(char* to, const char* from, uint64_t bytes) {
    static constexpr char zeros[PAGE] = {};
    for (uint64_t i = 0; i < bytes; i += PAGE)
        if (std::memcmp(from + i, zeros, PAGE) != 0) std::memcpy(to + i, from + i, PAGE);
}

}  // namespace

void add(std::unique_ptr<ManagedAllocation> fresh, BlockState state) {
    Managed& m = managed();
    fresh->blocks.assign((fresh->room + BLOCK - 1) / BLOCK, state);
    if (state != BlockState::stale) m.progress[&fresh->connection()].here.insert(fresh.get());
    widen_faults(fresh->address, fresh->address + fresh->room);
    m.allocations[fresh->address] = std::move(fresh);
    ++managed_allocations;
}

void hide_pages(const ManagedAllocation& a) {
    ::madvise(a.view, a.room, MADV_REMOVE);
    if (!a.mapped) ::munmap(a.view, a.room);
    ::mmap(at(a.address), a.room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

CUresult make_room(Connection& connection, uint64_t room, ManagedRange*& range, CUdeviceptr& address) {
    Managed& m = managed();
    range = nullptr;
    if (room <= SMALL)
        for (auto& each : m.ranges)
            if (each->connection == &connection && each->bytes == UNIT && (address = take(*each, room))) {
                range = each.get();
                break;
            }
    if (!range) {
        std::unique_ptr<ManagedRange> made;
        if (CUresult error = make_range(connection, round_up(room, UNIT), made); error != CUDA_SUCCESS)
            return error;
        range = made.get();
        m.ranges.push_back(std::move(made));
        address = take(*range, room);
    }
    return CUDA_SUCCESS;
}

void leave_room(ManagedRange* range, CUdeviceptr address, uint64_t room) {
    range->used_up_to = std::max(range->used_up_to, address + room);
    put_back(*range, address, room);
    drop_if_unused(range);
}

CUresult allocate(Device& device, uint64_t bytes, CUdeviceptr& address) {
    Connection& connection = device.connection;
    if (bytes > device.facts.memory_bytes || !serve_faults()) return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t room = round_up(bytes, PAGE);
    ManagedRange* range;
    CUdeviceptr place = 0;
    if (CUresult error = make_room(connection, room, range, place); error != CUDA_SUCCESS) return error;
    auto fresh = std::make_unique<ManagedAllocation>();
    fresh->range = range, fresh->device = &device;
    fresh->address = place, fresh->bytes = bytes, fresh->room = room;
    if (!map_pages(*fresh)) {
        put_back(*range, place, room);
        drop_if_unused(range);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (place < range->used_up_to) {  // used before; the host's new pages are zero
        {
            Request request(connection, DriverCall::cuMemsetD8_v2);
            request.put<CUdeviceptr>(place), request.put<unsigned char>(0), request.put<size_t>(room);
            request.queue();
        }
        before_any(connection);
    }
    range->used_up_to = std::max(range->used_up_to, place + room);
    add(std::move(fresh), BlockState::fresh);
    address = place;
    return CUDA_SUCCESS;
}

CUresult adopt(Device& device, CUdeviceptr address, uint64_t bytes) {
    if (bytes > device.facts.memory_bytes || !serve_faults()) return CUDA_ERROR_OUT_OF_MEMORY;
    std::unique_ptr<ManagedRange> made;
    if (CUresult error = make_range(device.connection, bytes, made, address); error != CUDA_SUCCESS)
        return error;
    ManagedRange* const range = made.get();
    take(*range, bytes);
    range->used_up_to = address + bytes;
    auto fresh = std::make_unique<ManagedAllocation>();
    ManagedAllocation& a = *fresh;
    a.range = range, a.device = &device, a.address = address, a.bytes = a.room = bytes;
    if (!view_pages(a)) {
        ask(device.connection, Operation::unmap, {address, bytes});
        ask(device.connection, Operation::release, {range->handle});
        ask(device.connection, Operation::free, {address, bytes});
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    managed().ranges.push_back(std::move(made));
    watch_faults();
    add(std::move(fresh), BlockState::fresh);
    // From here on a thread that writes waits in its fault until the copy is in place.
    ::mprotect(at(address), bytes, PROT_READ);
    copy_pages(a.view, static_cast<const char*>(at(address)), bytes);
    if (!show_pages(a)) lose(a, CUDA_ERROR_OPERATING_SYSTEM);
    return CUDA_SUCCESS;
}

CUresult release(ManagedAllocation& a) {
    Managed& m = managed();
    ManagedRange* range = a.range;
    const CUresult result = a.lost ? CUDA_SUCCESS : catch_up(a.connection());
    m.progress[range->connection].here.erase(&a);
    hide_pages(a);
    put_back(*range, a.address, a.room);
    m.allocations.erase(a.address);
    --managed_allocations;
    drop_if_unused(range);
    return result;
}

void forget(Connection& connection) {
    Managed& m = managed();
    managed_allocations -= static_cast<int>(std::erase_if(m.allocations, [&](const auto& entry) {
        const bool its = &entry.second->connection() == &connection;
        if (its) hide_pages(*entry.second);
        return its;
    }));
    forget_mapped(connection);
    forget_mirrors(connection);
    std::erase_if(m.ranges, [&](const auto& range) {
        const bool its = range->connection == &connection;
        if (its) free_here(range->address, range->bytes);
        return its;
    });
    m.progress.erase(&connection);
}

}  // namespace gpukernel::shim
