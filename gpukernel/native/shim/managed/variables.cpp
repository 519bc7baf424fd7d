// Managed variables of a library (`__managed__`, cuLibraryGetManaged): one address in the program and on the
// device.
//
// The device has chosen the address, in the midst of other variables, when it loaded the library.  So the
// program gets memory of its own at that address, and the variable is a mirror of it (mirrors.cpp): what the
// program writes is sent before work that may use it, and what kernels wrote is stored here once the program
// has waited.
#include <sys/mman.h>

#include "libcuda/library.h"
#include "shim/managed/pages.h"
#include "shim/modules/libraries.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

namespace {
constexpr uint64_t PAGE = 4096;

// Has pages of the program cover [address, address + bytes); false where something else lies there.
bool cover(uint64_t address, uint64_t bytes) {
    std::set<uint64_t>& pages = managed().variable_pages;
    for (uint64_t page = address / PAGE * PAGE; page < address + bytes; page += PAGE) {
        if (pages.contains(page)) continue;
        void* const got = ::mmap(at(page), PAGE, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (got == MAP_FAILED) return false;
        if (got != at(page)) return ::munmap(got, PAGE), false;  // a kernel that does not know the flag
        pages.insert(page);
    }
    return true;
}

// Of a module or a library.
CUresult variable(Connection& connection, const void* owner, const char* name, CUdeviceptr* address,
                  size_t* bytes) {
    const std::string own_name(name);  // not to be read in the middle of a request
    const auto number = reinterpret_cast<uint64_t>(owner);
    if (!(context_stack().back()->device->facts.attributes[0] & wire::HAS_MANAGED_VARIABLES))
        return gpukernel::unsupported("a __managed__ variable, by a worker of an older version");
    if (several_devices())  // each worker would have its own, and the program's pointer one of them
        return gpukernel::unsupported(
            "a __managed__ variable with several devices of a lease (use cudaMallocManaged)");
    if (CUresult error = before_managed(connection); error != CUDA_SUCCESS) return error;
    wire::ManagedVariableAnswer found;
    {
        ManagedLock lock(managed().mutex);
        Request request(connection, wire::ManagedVariableRequest{number, own_name});
        if (CUresult error = request.send(); error != CUDA_SUCCESS) return error;
        found = request.answer<wire::ManagedVariableAnswer>();
        if (!managed().find_mirror(found.address)) {
            Device& device = *context_stack().back()->device;
            // A worker that lies would have the program map memory without end.
            if (found.bytes > device.facts.memory_bytes || found.address > UINT64_MAX - found.bytes - PAGE)
                return CUDA_ERROR_INVALID_VALUE;
            if (!cover(found.address, found.bytes))
                return gpukernel::unsupported(
                    "a __managed__ variable whose address on the device is taken in this program (use "
                    "cudaMallocManaged)");
            if (CUresult error = mirror_variable(device, number, found.address, found.bytes);
                error != CUDA_SUCCESS)
                return error;
        }
    }
    if (address) *address = found.address;
    if (bytes) *bytes = found.bytes;
    return CUDA_SUCCESS;
}

std::optional<CUresult> ended(Connection& connection, const void* owner) {
    ManagedLock lock(managed().mutex);
    end_variables(connection, reinterpret_cast<uint64_t>(owner));
    return std::nullopt;
}
}  // namespace

CUresult variable_cuModuleGetGlobal_v2(Connection& connection, CUdeviceptr* address, size_t* bytes,
                                       CUmodule module, const char* name) {
    return variable(connection, module, name, address, bytes);
}
CUresult variable_cuLibraryGetGlobal(Connection& connection, CUdeviceptr* address, size_t* bytes,
                                     CUlibrary library, const char* name) {
    return variable(connection, library, name, address, bytes);
}
std::optional<CUresult> managed_cuModuleUnload(Connection& connection, CUmodule module) {
    return ended(connection, module);
}
std::optional<CUresult> managed_cuLibraryUnload(Connection& connection, CUlibrary library) {
    return ended(connection, library);
}

}  // namespace gpukernel::shim

using namespace gpukernel::shim;

CUresult CUDAAPI cuLibraryGetManaged(CUdeviceptr* dptr, size_t* bytes, CUlibrary library, const char* name) {
    GPUKERNEL_CURRENT(connection);
    if (!name || !library || (!dptr && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = name_there(*connection, library); error != CUDA_SUCCESS) return error;
    return variable(*connection, library, name, dptr, bytes);
}
