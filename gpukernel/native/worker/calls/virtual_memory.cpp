#include "worker/calls/virtual_memory.h"

#include <algorithm>

#include "worker/session/session.h"

namespace gpukernel::worker {

namespace {
// Limits of one lease: reserved addresses take address space of this process; ranges and mappings take a
// little memory each and count towards the kernel's limit for a process.
constexpr uint64_t MOST_ADDRESSES = uint64_t{16} << 40;
constexpr uint64_t MOST_RANGES = 32768;
// NVIDIA's driver takes smaller ranges from a range of its own, whatever is wished, and puts one of this size
// where it is wished (driver 580 on an H100): so the driver's ranges are as large, and nothing else lies in
// the rest.
constexpr uint64_t LEAST_AT_A_WISH = uint64_t{64} << 20;
}  // namespace

CUmemAllocationProp VirtualMemory::properties() const {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, session_.device()};
    return prop;
}

CUresult VirtualMemory::granularity(CUmemAllocationGranularity_flags option, size_t& bytes) {
    const CUmemAllocationProp prop = properties();
    const CUresult result = session_.cuda().cuMemGetAllocationGranularity(&bytes, &prop, option);
    return result == CUDA_SUCCESS && !bytes ? CUDA_ERROR_NOT_SUPPORTED : result;
}

CUresult VirtualMemory::reserve(uint64_t bytes, uint64_t alignment, CUdeviceptr wanted, wire::Writer& out) {
    if (session_.kept_error() != CUDA_SUCCESS) return session_.kept_error();
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    Lease& lease = session_.lease();
    if (bytes > MOST_ADDRESSES || alignment > MOST_ADDRESSES || lease.addresses > MOST_ADDRESSES - bytes ||
        lease.ranges >= MOST_RANGES)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t room = wanted ? std::max(bytes, LEAST_AT_A_WISH) : bytes;
    if (room > MOST_ADDRESSES - lease.addresses) return CUDA_ERROR_OUT_OF_MEMORY;
    CUdeviceptr address = 0;
    const CUresult result = session_.cuda().cuMemAddressReserve(&address, room, alignment, wanted, 0);
    if (result != CUDA_SUCCESS) return result;
    lease.addresses += room, ++lease.ranges;
    reserved_[address] = {bytes, room};
    wire::VirtualMemoryAnswer{address}.write(out);
    return CUDA_SUCCESS;
}

CUresult VirtualMemory::free(CUdeviceptr address, uint64_t bytes) {
    auto it = reserved_.find(address);
    if (it == reserved_.end() || it->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
    auto inside = mapped_.lower_bound(address);
    if (inside != mapped_.end() && inside->first - address < bytes) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t room = it->second.room;
    const CUresult result = session_.cuda().cuMemAddressFree(address, room);
    if (result != CUDA_SUCCESS) return result;
    session_.lease().addresses -= room, --session_.lease().ranges;
    reserved_.erase(it);
    return CUDA_SUCCESS;
}

CUresult VirtualMemory::create(uint64_t bytes, uint64_t handle_type, wire::Writer& out,
                               std::unique_lock<std::mutex>& allocating) {
    if (session_.kept_error() != CUDA_SUCCESS) return session_.kept_error();
    // The driver never hears of it: a worker's programs share its context.
    if (handle_type != CU_MEM_HANDLE_TYPE_NONE && handle_type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    size_t unit = 0;
    if (CUresult error = granularity(CU_MEM_ALLOC_GRANULARITY_MINIMUM, unit); error != CUDA_SUCCESS)
        return error;
    if (!bytes || bytes % unit) return CUDA_ERROR_INVALID_VALUE;
    Lease& lease = session_.lease();
    auto host = session_.host_charge(HostMemory::RANGE);
    if (!host) return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint64_t seen = lease.releases(); !lease.charge(&session_, bytes); seen = lease.releases()) {
        allocating.unlock();
        const bool more = session_.wait_for_memory(seen);
        allocating.lock();
        if (!more) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const CUmemAllocationProp prop = properties();
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = session_.cuda().cuMemCreate(&handle, bytes, &prop, 0);
    if (result != CUDA_SUCCESS) {
        session_.lease().refund(&session_, bytes);
        return result;
    }
    const uint64_t name =
        session_.number_of(reinterpret_cast<void*>(handle), Kind::memory, nullptr, std::move(*host));
    physical_[name] = {
        std::make_shared<PhysicalMemory>(PhysicalMemory{
            handle, bytes, static_cast<CUmemAllocationHandleType>(handle_type), {&session_}, {}}),
        1, 0};
    wire::VirtualMemoryAnswer{name}.write(out);
    return CUDA_SUCCESS;
}

void VirtualMemory::settle(uint64_t name) {
    auto it = physical_.find(name);
    if (it == physical_.end() || it->second.references || it->second.mappings) return;
    let_go(*it->second.memory);
    session_.drop(name);
    physical_.erase(it);
}

void VirtualMemory::let_go(PhysicalMemory& memory) {
    Lease& lease = session_.lease();
    const bool charged = memory.holders.front() == &session_;
    std::erase(memory.holders, static_cast<const void*>(&session_));
    if (!memory.holders.empty()) {
        if (charged) lease.pass_on(&session_, memory.holders.front(), memory.bytes);
        return;
    }
    session_.cuda().cuMemRelease(memory.handle);
    lease.refund(&session_, memory.bytes);
    if (memory.name) lease.shared_physical.erase(*memory.name);
}

CUresult VirtualMemory::share(uint64_t memory, SharedName& name) {
    if (session_.kept_error() != CUDA_SUCCESS) return session_.kept_error();
    std::lock_guard allocating(session_.lease().allocation_mutex);
    auto it = physical_.find(memory);
    if (it == physical_.end() || !it->second.references ||
        it->second.memory->handle_type == CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    std::optional<SharedName>& its = it->second.memory->name;
    if (!its && !(its = new_shared_name())) return CUDA_ERROR_OPERATING_SYSTEM;
    session_.lease().shared_physical[*its] = it->second.memory;
    ++it->second.references;
    name = *its;
    return CUDA_SUCCESS;
}

CUresult VirtualMemory::open(const SharedName& name, uint64_t& memory) {
    if (session_.kept_error() != CUDA_SUCCESS) return session_.kept_error();
    std::lock_guard allocating(session_.lease().allocation_mutex);
    auto found = session_.lease().shared_physical.find(name);
    if (found == session_.lease().shared_physical.end()) return CUDA_ERROR_INVALID_VALUE;
    const std::shared_ptr<PhysicalMemory> shared = found->second.lock();
    auto mine = std::find_if(physical_.begin(), physical_.end(),
                             [&](const auto& each) { return each.second.memory == shared; });
    if (mine == physical_.end()) {
        auto host = session_.host_charge(HostMemory::RANGE);
        if (!host) return CUDA_ERROR_OUT_OF_MEMORY;
        const uint64_t number = session_.number_of(reinterpret_cast<void*>(shared->handle), Kind::memory,
                                                   nullptr, std::move(*host));
        mine = physical_.emplace(number, Physical{shared, 0, 0}).first;
        shared->holders.push_back(&session_);
    }
    ++mine->second.references;
    memory = mine->first;
    return CUDA_SUCCESS;
}

CUresult VirtualMemory::release(uint64_t name) {
    auto it = physical_.find(name);
    if (it == physical_.end() || !it->second.references) return CUDA_ERROR_INVALID_VALUE;
    --it->second.references;
    settle(name);
    return CUDA_SUCCESS;
}

CUresult VirtualMemory::map(CUdeviceptr address, uint64_t bytes, uint64_t offset, uint64_t name) {
    auto physical = physical_.find(name);
    auto range = reserved_.upper_bound(address);
    if (physical == physical_.end() || !physical->second.references || range == reserved_.begin() || !bytes ||
        offset || bytes > physical->second.memory->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    --range;
    const uint64_t inside = address - range->first;
    if (inside > range->second.bytes || bytes > range->second.bytes - inside) return CUDA_ERROR_INVALID_VALUE;
    auto next = mapped_.lower_bound(address);
    if (next != mapped_.end() && next->first - address < bytes) return CUDA_ERROR_INVALID_VALUE;
    if (mapping(address) != mapped_.end()) return CUDA_ERROR_INVALID_VALUE;
    if (session_.lease().ranges >= MOST_RANGES) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result =
        session_.cuda().cuMemMap(address, bytes, offset, physical->second.memory->handle, 0);
    if (result != CUDA_SUCCESS) return result;
    ++physical->second.mappings, ++session_.lease().ranges;
    mapped_[address] = {bytes, name, CU_MEM_ACCESS_FLAGS_PROT_NONE};
    return CUDA_SUCCESS;
}

VirtualMemory::Mapped::iterator VirtualMemory::mapping(CUdeviceptr address) {
    auto it = mapped_.upper_bound(address);
    if (it == mapped_.begin()) return mapped_.end();
    --it;
    return address - it->first < it->second.bytes ? it : mapped_.end();
}

bool VirtualMemory::tiled(CUdeviceptr address, uint64_t bytes) const {
    uint64_t covered = 0;
    for (auto it = mapped_.find(address);
         it != mapped_.end() && covered < bytes && it->first == address + covered; ++it)
        covered += it->second.bytes;
    return bytes && covered == bytes;
}

CUresult VirtualMemory::unmap(CUdeviceptr address, uint64_t bytes) {
    if (!tiled(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    const auto pause = session_.lease().early_reads.pause();
    const CUresult result = session_.cuda().cuMemUnmap(address, bytes);
    if (result != CUDA_SUCCESS) return result;
    for (auto it = mapped_.find(address); it != mapped_.end() && it->first - address < bytes;) {
        const uint64_t name = it->second.name;
        session_.lease().set_accessible(it->first, 0);
        --session_.lease().ranges;
        it = mapped_.erase(it);
        --physical_.at(name).mappings;
        settle(name);
    }
    return CUDA_SUCCESS;
}

CUresult VirtualMemory::set_access(CUdeviceptr address, uint64_t bytes, CUmemAccess_flags access) {
    if ((access != CU_MEM_ACCESS_FLAGS_PROT_NONE && access != CU_MEM_ACCESS_FLAGS_PROT_READ &&
         access != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) ||
        !tiled(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    const CUmemAccessDesc description{{CU_MEM_LOCATION_TYPE_DEVICE, session_.device()}, access};
    const auto pause = session_.lease().early_reads.pause();
    const CUresult result = session_.cuda().cuMemSetAccess(address, bytes, &description, 1);
    if (result != CUDA_SUCCESS) return result;
    for (auto it = mapped_.find(address); it != mapped_.end() && it->first - address < bytes; ++it) {
        it->second.access = access;
        session_.lease().set_accessible(it->first,
                                        access == CU_MEM_ACCESS_FLAGS_PROT_NONE ? 0 : it->second.bytes);
    }
    return CUDA_SUCCESS;
}

CUresult VirtualMemory::retain(CUdeviceptr address, wire::Writer& out) {
    if (session_.kept_error() != CUDA_SUCCESS) return session_.kept_error();
    auto it = mapping(address);
    if (it == mapped_.end()) return CUDA_ERROR_INVALID_VALUE;
    ++physical_.at(it->second.name).references;
    wire::VirtualMemoryAnswer{it->second.name}.write(out);
    return CUDA_SUCCESS;
}

CUresult VirtualMemory::serve(wire::Reader& in, wire::Writer& out) {
    const auto [operation, first, second, third, fourth] = wire::VirtualMemoryRequest::read(in);
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    std::unique_lock allocating(session_.lease().allocation_mutex);
    switch (operation) {
        case wire::VirtualMemory::granularity: {
            size_t bytes = 0;
            const CUresult result = granularity(static_cast<CUmemAllocationGranularity_flags>(first), bytes);
            wire::VirtualMemoryAnswer{bytes}.write(out);
            return result;
        }
        case wire::VirtualMemory::reserve:
            return reserve(first, second, third, out);
        case wire::VirtualMemory::free:
            return free(first, second);
        case wire::VirtualMemory::create:
            return create(first, second, out, allocating);
        case wire::VirtualMemory::release:
            return release(first);
        case wire::VirtualMemory::map:
            return map(first, second, third, fourth);
        case wire::VirtualMemory::unmap:
            return unmap(first, second);
        case wire::VirtualMemory::set_access:
            return set_access(first, second, static_cast<CUmemAccess_flags>(third));
        case wire::VirtualMemory::get_access: {
            auto it = mapping(first);
            if (it == mapped_.end()) return CUDA_ERROR_INVALID_VALUE;
            wire::VirtualMemoryAnswer{it->second.access}.write(out);
            return CUDA_SUCCESS;
        }
        case wire::VirtualMemory::retain:
            return retain(first, out);
        case wire::VirtualMemory::size:
        case wire::VirtualMemory::handle_type: {
            auto it = physical_.find(first);
            if (it == physical_.end() || !it->second.references) return CUDA_ERROR_INVALID_VALUE;
            const PhysicalMemory& memory = *it->second.memory;
            wire::VirtualMemoryAnswer{operation == wire::VirtualMemory::size ? memory.bytes
                                                                             : memory.handle_type}
                .write(out);
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

void VirtualMemory::end() {
    const auto pause = session_.lease().early_reads.pause();
    for (const auto& [address, mapping] : mapped_) {
        session_.lease().set_accessible(address, 0);
        session_.cuda().cuMemUnmap(address, mapping.bytes);
    }
    session_.lease().ranges -= mapped_.size() + reserved_.size();
    for (const auto& [name, physical] : physical_) let_go(*physical.memory);
    for (const auto& [address, range] : reserved_) {
        session_.cuda().cuMemAddressFree(address, range.room);
        session_.lease().addresses -= range.room;
    }
    mapped_.clear(), physical_.clear(), reserved_.clear();
}

}  // namespace gpukernel::worker
