// Virtual memory management: this process records which device has which range and mapping; the device's
// worker keeps the accounts and checks everything again.
#include "shim/memory/virtual_memory.h"

#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <map>

#include "libcuda/virtual_memory.h"
#include "shim/managed/managed.h"

using namespace gpukernel::shim;
using gpukernel::libcuda::check_reservation;
using gpukernel::libcuda::device_of_handle;
using gpukernel::libcuda::device_of_property;
using gpukernel::libcuda::DEVICE_SHIFT;
using gpukernel::libcuda::handle_of;
using gpukernel::libcuda::number_of_handle;
using Operation = gpukernel::wire::VirtualMemory;

namespace {
constexpr uint64_t UNIT = 2 << 20;
constexpr uint64_t WINDOW = 64 << 20;  // the worker's driver reserves no less at a wished address
constexpr int QUIET_TRIES = 8, TRIES = 16;

CUdeviceptr random_address(uint64_t bytes, uint64_t alignment) {  // 0 where there is no randomness
    uint64_t random = 0;
    if (::getrandom(&random, sizeof random, 0) != sizeof random) return 0;
    return QUIET_FROM + random % (QUIET_BYTES - bytes) / alignment * alignment;
}

bool take_here(uint64_t address, uint64_t bytes) {
    void* const wanted = reinterpret_cast<void*>(address);
    void* there = ::mmap(wanted, bytes, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (there == wanted) return true;
    if (there != MAP_FAILED) ::munmap(there, bytes);  // a kernel that does not know the flag
    return false;
}

// False where the range is in use at the worker; `error` where another try is of no use.
bool take_there(Connection& connection, uint64_t address, uint64_t bytes, uint64_t alignment,
                CUresult& error) {
    uint64_t got = 0;
    error = ask(connection, Operation::reserve, {bytes, alignment, address}, &got);
    if (error != CUDA_SUCCESS || got == address) return error == CUDA_SUCCESS;
    error = ask(connection, Operation::free, {got, bytes});
    return false;
}

bool take(Connection& connection, uint64_t address, uint64_t bytes, uint64_t alignment, CUresult& error) {
    if (!take_here(address, bytes)) return false;
    if (take_there(connection, address, bytes, alignment, error)) return true;
    free_here(address, bytes);
    return false;
}

struct Range {
    uint64_t bytes;
    std::vector<Device*> devices;  // at whose workers it is reserved
};
struct Mapping {
    uint64_t bytes;
    Device* device = nullptr;
    CUmemGenericAllocationHandle physical = 0;
    bool used = true;  // it may hold something
};
// Memory that was made or mapped while the processor may touch what is mapped.  What it wrote goes with the
// mapping, so there is one.
enum class Life { made, mapped, kept };  // kept: mapped, and it may have more handles
std::mutex ranges_mutex;
std::map<CUdeviceptr, Range> ranges;
std::map<CUdeviceptr, Mapping> mappings;
std::map<CUmemGenericAllocationHandle, Life> lives;

// Under ranges_mutex:
template <class Map>
auto containing(Map& map, CUdeviceptr address) {
    auto it = map.upper_bound(address);
    if (it == map.begin()) return map.end();
    --it;
    return address - it->first < it->second.bytes ? it : map.end();
}
// The mappings that cover a range exactly; none where they do not.
std::vector<std::pair<CUdeviceptr, Mapping>> pieces(CUdeviceptr address, uint64_t bytes) {
    std::vector<std::pair<CUdeviceptr, Mapping>> found;
    uint64_t covered = 0;
    for (auto it = mappings.find(address);
         it != mappings.end() && covered < bytes && it->first == address + covered; ++it) {
        found.push_back(*it);
        covered += it->second.bytes;
    }
    if (covered != bytes) found.clear();
    return found;
}
bool is_mapped(CUmemGenericAllocationHandle physical) {
    return std::any_of(mappings.begin(), mappings.end(),
                       [&](const auto& each) { return each.second.physical == physical; });
}

}  // namespace

namespace gpukernel::shim {

CUresult physical_handle(const Device& device, uint64_t number, CUmemGenericAllocationHandle& handle) {
    if (number >> DEVICE_SHIFT) return CUDA_ERROR_UNKNOWN;
    handle = handle_of(device, number);
    return CUDA_SUCCESS;
}

CUresult ask(Connection& connection, Operation operation, std::initializer_list<uint64_t> arguments,
             uint64_t* answer) {
    uint64_t four[4] = {};
    std::copy(arguments.begin(), arguments.end(), four);
    Request request(connection, wire::VirtualMemoryRequest{operation, four[0], four[1], four[2], four[3]});
    const CUresult result = request.send();
    if (answer)
        *answer = result == CUDA_SUCCESS ? request.answer<wire::VirtualMemoryAnswer>().value.value_or(0) : 0;
    return result;
}

CUresult reserve_on_both_sides(Connection& connection, uint64_t bytes, uint64_t alignment, uint64_t wanted,
                               CUdeviceptr& address) {
    CUresult error = CUDA_SUCCESS;
    alignment = std::max(alignment, UNIT);
    if (bytes >= QUIET_BYTES || alignment >= QUIET_BYTES) return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t apart = std::max(alignment, WINDOW);
    auto found = [&](uint64_t at) { return take(connection, address = at, bytes, alignment, error); };
    if (wanted && wanted % alignment == 0 && found(wanted)) return CUDA_SUCCESS;
    for (int i = 0; i < QUIET_TRIES && error == CUDA_SUCCESS; ++i) {
        const CUdeviceptr quiet = random_address(bytes, apart);
        if (quiet && found(quiet)) return CUDA_SUCCESS;
    }
    for (int i = 0; i < TRIES && error == CUDA_SUCCESS; ++i) {  // where the kernel has room
        void* free =
            ::mmap(nullptr, bytes + apart, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (free == MAP_FAILED) break;
        ::munmap(free, bytes + apart);
        const auto from = reinterpret_cast<uint64_t>(free);
        // Twice as far down each time.
        const uint64_t down = ((uint64_t{1} << i) - 1) * std::max(apart, bytes);
        if (down < from && found((from - down + apart - 1) / apart * apart)) return CUDA_SUCCESS;
    }
    return error == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : error;
}

CUresult end_ranges(Device& device, const std::function<CUresult()>& end) {
    std::lock_guard lock(ranges_mutex);
    const CUresult result = end();
    if (result != CUDA_SUCCESS) return result;
    std::erase_if(mappings, [&](const auto& each) { return each.second.device == &device; });
    std::erase_if(lives, [&](const auto& each) { return device_of_handle<Device>(each.first) == &device; });
    for (auto it = ranges.begin(); it != ranges.end();) {
        auto& [address, range] = *it;
        const bool its_own = std::erase(range.devices, &device) && range.devices.empty();
        if (its_own) free_here(address, range.bytes);
        it = its_own ? ranges.erase(it) : std::next(it);
    }
    return result;
}

bool refuse_to_share(const char* what) {
    if (reaches_mapped) gpukernel::unsupported(what);
    return reaches_mapped;
}

void free_here(CUdeviceptr address, uint64_t bytes) { ::munmap(reinterpret_cast<void*>(address), bytes); }

CUdeviceptr reserve_here(uint64_t bytes) {
    if (bytes >= QUIET_BYTES) return 0;
    for (int i = 0; i < QUIET_TRIES; ++i) {
        const CUdeviceptr address = random_address(bytes, WINDOW);
        if (address && take_here(address, bytes)) return address;
    }
    return 0;
}

CUresult reserve_there(Connection& connection, CUdeviceptr address, uint64_t bytes) {
    CUresult error = CUDA_SUCCESS;
    if (take_there(connection, address, bytes, UNIT, error)) return CUDA_SUCCESS;
    return error == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : error;
}

}  // namespace gpukernel::shim

#define GPUKERNEL_INITIALISED() \
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                               CUmemAllocationGranularity_flags option) {
    GPUKERNEL_INITIALISED();
    Device* device = nullptr;
    if (!granularity) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = device_of_property(prop, device); error != CUDA_SUCCESS) return error;
    uint64_t size = 0;
    const CUresult result =
        ask(device->connection, Operation::granularity, {static_cast<uint64_t>(option)}, &size);
    if (result == CUDA_SUCCESS) *granularity = size;
    return result;
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr addr,
                                     unsigned long long flags) {
    GPUKERNEL_INITIALISED();
    if (CUresult error = check_reservation(ptr, size, alignment, addr, flags); error != CUDA_SUCCESS)
        return error;
    // On a GPU address ranges belong to no device.  Here a range is reserved at the current device's worker,
    // and at another's when that one maps memory there.
    Device* device =
        context_stack().empty() ? process()->devices.front().get() : context_stack().back()->device;
    CUdeviceptr address = 0;
    const CUresult result = reserve_on_both_sides(device->connection, size, alignment, addr, address);
    if (result != CUDA_SUCCESS) return result;
    {
        std::lock_guard lock(ranges_mutex);
        ranges[address] = {size, {device}};
    }
    *ptr = address;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr ptr, size_t size) {
    GPUKERNEL_INITIALISED();
    std::lock_guard lock(ranges_mutex);
    auto it = ranges.find(ptr);
    if (it == ranges.end() || it->second.bytes != size) return CUDA_ERROR_INVALID_VALUE;
    auto inside = mappings.lower_bound(ptr);
    if (inside != mappings.end() && inside->first - ptr < size) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    for (Device* device : it->second.devices)
        if (CUresult error = ask(device->connection, Operation::free, {ptr, size}); error != CUDA_SUCCESS)
            result = error;
    forget_reserved(ptr);
    free_here(ptr, size);
    ranges.erase(it);
    return result;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                             const CUmemAllocationProp* prop, unsigned long long flags) {
    GPUKERNEL_INITIALISED();
    Device* device = nullptr;
    if (!handle || flags) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = device_of_property(prop, device); error != CUDA_SUCCESS) return error;
    end_exports();
    uint64_t made = 0;
    const CUresult result =
        ask(device->connection, Operation::create, {size, prop->requestedHandleTypes}, &made);
    if (result != CUDA_SUCCESS) return result;
    const CUresult named = physical_handle(*device, made, *handle);
    if (named != CUDA_SUCCESS || !reaches_mapped) return named;
    std::lock_guard lock(ranges_mutex);
    lives[*handle] = Life::made;
    return named;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
    GPUKERNEL_INITIALISED();
    Device* device = device_of_handle<Device>(handle);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    end_exports();
    const CUresult result = ask(device->connection, Operation::release, {number_of_handle(handle)});
    if (result != CUDA_SUCCESS || !reaches_mapped) return result;
    std::lock_guard lock(ranges_mutex);
    if (auto life = lives.find(handle); life != lives.end() && life->second != Life::kept) lives.erase(life);
    return result;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
    GPUKERNEL_INITIALISED();
    Device* device = device_of_handle<Device>(handle);
    if (!device || flags) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(ranges_mutex);
    auto range = containing(ranges, ptr);
    if (range == ranges.end() || size > range->second.bytes - (ptr - range->first))
        return CUDA_ERROR_INVALID_VALUE;
    // The worker of this device knows only its own mappings.
    auto next = mappings.lower_bound(ptr);
    if (containing(mappings, ptr) != mappings.end() || (next != mappings.end() && next->first - ptr < size))
        return CUDA_ERROR_INVALID_VALUE;
    auto life = lives.find(handle);
    const bool used = life == lives.end() || life->second != Life::made;
    if (reaches_mapped && used && (life != lives.end() || is_mapped(handle)))
        return gpukernel::unsupported(
            "cuMemMap of memory that was mapped before, while the CPU computes on it,");
    std::vector<Device*>& devices = range->second.devices;
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) {
        CUresult error;
        if (!take_there(device->connection, range->first, range->second.bytes, 0, error))
            return error == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : error;
        devices.push_back(device);
    }
    const CUresult result =
        ask(device->connection, Operation::map, {ptr, size, offset, number_of_handle(handle)});
    if (result != CUDA_SUCCESS) return result;
    mappings[ptr] = {size, device, handle, used};
    if (reaches_mapped) lives[handle] = used ? Life::kept : Life::mapped;
    return result;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size) {
    GPUKERNEL_INITIALISED();
    end_exports();
    std::lock_guard lock(ranges_mutex);
    const auto found = pieces(ptr, size);
    if (found.empty()) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < found.size();) {  // adjacent mappings of one device go in one request
        const auto [address, first] = found[i];
        uint64_t bytes = 0;
        size_t end = i;
        while (end < found.size() && found[end].second.device == first.device)
            bytes += found[end++].second.bytes;
        const CUresult result = end_reach(address, bytes, [&, address = address, &of = *first.device] {
            return ask(of.connection, Operation::unmap, {address, bytes});
        });
        if (result != CUDA_SUCCESS) return result;
        for (; i < end; ++i) mappings.erase(found[i].first);
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
    GPUKERNEL_INITIALISED();
    if (!desc || !count) return CUDA_ERROR_INVALID_VALUE;
    if (reaches_mapped)
        for (const auto& device : process()->devices)
            if (CUresult error = before_managed(device->connection); error != CUDA_SUCCESS) return error;
    std::lock_guard lock(ranges_mutex);
    const auto found = pieces(ptr, size);
    if (found.empty()) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            return gpukernel::unsupported("cuMemSetAccess for the host");
        Device* device = device_at(desc[i].location.id);
        if (!device) return CUDA_ERROR_INVALID_DEVICE;
        const bool its_own = std::all_of(found.begin(), found.end(),
                                         [&](const auto& each) { return each.second.device == device; });
        if (!its_own && desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) continue;
        if (!its_own) return CUDA_ERROR_INVALID_DEVICE;  // devices of a lease do not see each other's memory
        if (desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
            std::any_of(found.begin(), found.end(), [](const auto& each) { return is_reached(each.first); }))
            return gpukernel::unsupported("cuMemSetAccess to less, while the CPU computes on the memory,");
        const CUresult result =
            ask(device->connection, Operation::set_access, {ptr, size, static_cast<uint64_t>(desc[i].flags)});
        if (result != CUDA_SUCCESS) return result;
        if (!reaches_mapped || desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) continue;
        const auto range = containing(ranges, ptr);
        for (const auto& [address, mapping] : found) {
            if (is_reached(address)) continue;
            if (CUresult error = reach(*device, {range->first, range->second.bytes, true}, address,
                                       mapping.bytes, mapping.used);
                error != CUDA_SUCCESS)
                return error;
        }
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
    GPUKERNEL_INITIALISED();
    if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    Device* device = device_at(location->id);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    std::lock_guard lock(ranges_mutex);
    auto it = containing(mappings, ptr);
    if (it == mappings.end()) return CUDA_ERROR_INVALID_VALUE;
    uint64_t answer = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CUresult result = CUDA_SUCCESS;
    if (it->second.device == device) result = ask(device->connection, Operation::get_access, {ptr}, &answer);
    if (result == CUDA_SUCCESS) *flags = answer;
    return result;
}

CUresult gpukernel::libcuda::check_physical(CUmemGenericAllocationHandle handle,
                                            CUmemAllocationHandleType& shared_by) {
    auto* const device = device_of_handle<shim::Device>(handle);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    const bool may = worker_shares_physical(*device);
    uint64_t answer = 0;
    const CUresult result = ask(device->connection, may ? Operation::handle_type : Operation::size,
                                {number_of_handle(handle)}, &answer);
    if (result == CUDA_SUCCESS && may) shared_by = static_cast<CUmemAllocationHandleType>(answer);
    return result;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
    GPUKERNEL_INITIALISED();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    const auto address = reinterpret_cast<uint64_t>(addr);
    std::lock_guard lock(ranges_mutex);
    auto it = containing(mappings, address);
    if (it == mappings.end()) return CUDA_ERROR_INVALID_VALUE;
    uint64_t found = 0;
    const CUresult result = ask(it->second.device->connection, Operation::retain, {address}, &found);
    if (result != CUDA_SUCCESS) return result;
    const CUresult named = physical_handle(*it->second.device, found, *handle);
    if (auto life = lives.find(*handle); named == CUDA_SUCCESS && life != lives.end())
        life->second = Life::kept;
    return named;
}
