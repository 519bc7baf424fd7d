// Memory that the program maps itself (cuMemMap), and that the processor may touch as it may managed memory:
// `gpukernel.frameworks` asks for it on simulated devices.
//
// A reserved range gets pages for its whole length when memory is first mapped in it; those that nobody
// touches take none.  Mappings side by side are one allocation, since a copy or a kernel's array may cross
// their border; what is unmapped in its midst leaves two.
#include <sys/mman.h>

#include <algorithm>

#include "shim/managed/page_faults.h"
#include "shim/managed/pages.h"
#include "shim/memory/virtual_memory.h"

namespace gpukernel::shim {

std::atomic<bool> reaches_mapped{false};

namespace {
constexpr uint64_t UNIT = 2 << 20;  // of memory that is mapped

MappedRange* range_of(Device& device, MemoryUse reserved) {
    Managed& m = managed();
    for (auto& each : m.mapped)
        if (each->range.address == reserved.address && each->range.connection == &device.connection)
            return each.get();
    auto fresh = std::make_unique<MappedRange>();
    fresh->range = {&device.connection, reserved.address, reserved.bytes, 0, {}, reserved.address};
    ManagedAllocation& pages = fresh->pages;
    pages.range = &fresh->range, pages.device = &device, pages.address = reserved.address;
    pages.bytes = pages.room = reserved.bytes;
    if (!view_pages(pages)) return nullptr;
    for (int advice : {MADV_DONTFORK, MADV_DONTDUMP}) ::madvise(pages.view, pages.room, advice);
    return m.mapped.emplace_back(std::move(fresh)).get();
}

std::unique_ptr<ManagedAllocation> part_of(MappedRange& of, CUdeviceptr address, uint64_t bytes) {
    auto part = std::make_unique<ManagedAllocation>();
    part->range = &of.range, part->device = of.pages.device, part->mapped = true;
    part->address = address, part->bytes = part->room = bytes;
    part->view = of.pages.view + (address - of.range.address);
    part->offset = of.pages.offset + (address - of.range.address), part->file = of.pages.file;
    return part;
}

// Sets a part's blocks, and what follows from them.
void place(std::unique_ptr<ManagedAllocation> part, std::vector<BlockState> blocks) {
    ManagedAllocation& a = *part;
    add(std::move(part), BlockState::stale);
    a.blocks = std::move(blocks);
    if (std::any_of(a.blocks.begin(), a.blocks.end(), [](BlockState s) { return s != BlockState::stale; }))
        managed().progress[&a.connection()].here.insert(&a);
}

void erase(ManagedAllocation& a) {
    Managed& m = managed();
    m.progress[&a.connection()].here.erase(&a);
    m.allocations.erase(a.address);
    --managed_allocations;
}

MappedRange& mapped_range(const ManagedAllocation& a) {
    return **std::find_if(managed().mapped.begin(), managed().mapped.end(),
                          [&](const auto& each) { return &each->range == a.range; });
}

// Makes two neighbours of one range one allocation; nothing where they are not.
void join(ManagedAllocation* left, ManagedAllocation* right) {
    if (!left || !right || left == right || left->range != right->range || !left->mapped ||
        left->address + left->room != right->address || left->lost || right->lost)
        return;
    left->bytes = left->room += right->room;
    left->blocks.insert(left->blocks.end(), right->blocks.begin(), right->blocks.end());
    auto& here = managed().progress[&left->connection()].here;
    if (here.contains(right)) here.insert(left);
    erase(*right);
}

// Takes [from, to) out of an allocation.
void cut(ManagedAllocation& a, CUdeviceptr from, CUdeviceptr to) {
    MappedRange& range = mapped_range(a);
    const CUdeviceptr begin = a.address, end = a.address + a.room;
    const std::vector<BlockState> blocks = a.blocks;
    const bool lost = a.lost;
    erase(a);
    hide_pages(*part_of(range, from, to - from));
    for (const auto& [first, last] : {std::pair{begin, from}, std::pair{to, end}}) {
        if (first == last) continue;
        auto part = part_of(range, first, last - first);
        part->lost = lost;
        place(std::move(part),
              {blocks.begin() + (first - begin) / BLOCK, blocks.begin() + (last - begin) / BLOCK});
    }
}
}  // namespace

CUresult reach(Device& device, MemoryUse reserved, CUdeviceptr address, uint64_t bytes, bool used) {
    if (address % UNIT || bytes % UNIT) return CUDA_ERROR_INVALID_VALUE;
    if (!serve_faults()) return CUDA_ERROR_OUT_OF_MEMORY;
    watch_faults();
    ManagedLock lock(managed().mutex);
    MappedRange* const range = range_of(device, reserved);
    if (!range) return CUDA_ERROR_OUT_OF_MEMORY;
    auto part = part_of(*range, address, bytes);
    // A program that has closed all of its descriptors has lost the file of the pages.
    if (!managed().has_file() || part->file != managed().identity || !show_pages(*part))
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (used && ::mprotect(at(address), bytes, PROT_NONE) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
    place(std::move(part), std::vector(bytes / BLOCK, used ? BlockState::stale : BlockState::fresh));
    join(managed().find(address), managed().find(address + bytes));
    join(managed().find(address - 1), managed().find(address));
    return CUDA_SUCCESS;
}

bool is_reached(CUdeviceptr address) {
    if (!has_managed()) return false;
    ManagedLock lock(managed().mutex);
    const ManagedAllocation* const a = managed().find(address);
    return a && a->mapped;
}

CUresult end_reach(CUdeviceptr address, uint64_t bytes, const std::function<CUresult()>& unmap) {
    if (!has_managed()) return unmap();
    ManagedLock lock(managed().mutex);
    if (const CUresult result = unmap(); result != CUDA_SUCCESS) return result;
    std::vector<ManagedAllocation*> inside;
    for (auto& [from, each] : managed().allocations)
        if (each->mapped && from < address + bytes && address < from + each->room)
            inside.push_back(each.get());
    for (ManagedAllocation* a : inside)
        cut(*a, std::max(address, a->address), std::min(address + bytes, a->address + a->room));
    return CUDA_SUCCESS;
}

void forget_reserved(CUdeviceptr range) {
    ManagedLock lock(managed().mutex);
    std::erase_if(managed().mapped, [&](const auto& each) {
        const bool its = each->range.address == range;
        if (its) ::munmap(each->pages.view, each->pages.room);
        return its;
    });
}

void forget_mapped(Connection& connection) {
    std::erase_if(managed().mapped, [&](const auto& each) {
        const bool its = each->range.connection == &connection;
        if (its) ::munmap(each->pages.view, each->pages.room);
        return its;
    });
}

}  // namespace gpukernel::shim

// Asked for by the CUDA runtime of gpukernel (cudart/memory.cpp), for memory that is mapped from now on.
extern "C" __attribute__((visibility("default"))) void gpukernel_reach_mapped(int wanted) {
    gpukernel::shim::reaches_mapped = wanted != 0;
}
