// Memory and events that programs of one lease share (driver API, IPC functions of chapter "Device
// Management").  A handle holds a name that the lease's worker made up.  The worker has one context for all
// of its programs, in which the memory has the same address for each.
#include <cstring>
#include <map>
#include <mutex>

#include "shim/graphs/capture.h"
#include "shim/memory/memory.h"
#include "shim/transport/request.h"

using namespace gpukernel::shim;
namespace wire = gpukernel::wire;

namespace {
constexpr char MEMORY[16] = "gpukernel-shmem", EVENT[16] = "gpukernel-event";
struct SharedHandle {
    char kind[16];
    uint64_t first, second;
};

// How often this process has opened what lies at an address.
std::mutex opened_mutex;
std::map<std::pair<Connection*, CUdeviceptr>, unsigned> opened;

template <class Handle>
void write(Handle& handle, const char (&kind)[16], uint64_t first, uint64_t second) {
    static_assert(sizeof(SharedHandle) <= sizeof handle.reserved);
    SharedHandle shared{{}, first, second};
    std::memcpy(shared.kind, kind, sizeof kind);
    std::memset(&handle, 0, sizeof handle);
    std::memcpy(&handle, &shared, sizeof shared);
}
template <class Handle>
bool read(const Handle& handle, const char (&kind)[16], SharedHandle& shared) {
    std::memcpy(&shared, &handle, sizeof shared);
    return std::memcmp(shared.kind, kind, sizeof kind) == 0;
}
}  // namespace

bool gpukernel::shim::worker_shares(const Device& device) {
    return device.facts.attributes[CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED] != 0;
}

void gpukernel::shim::forget_opened(Connection& connection) {
    std::lock_guard lock(opened_mutex);
    std::erase_if(opened, [&](const auto& each) { return each.first.first == &connection; });
}

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle* pHandle, CUdeviceptr dptr) {
    GPUKERNEL_CURRENT(connection);
    if (!worker_shares(*context_stack().back()->device))
        return gpukernel::unsupported("sharing between programs, by a worker of an older version");
    if (!pHandle || !dptr) return CUDA_ERROR_INVALID_VALUE;
    uint64_t first, second;
    forget_spares(*connection);  // what is shared is not used again
    share_memory(*connection);
    {
        Request request(*connection, wire::NameMemoryRequest{dptr});
        if (CUresult error = request.send(); error != CUDA_SUCCESS) return error;
        const auto answer = request.answer<wire::NameMemoryAnswer>();
        first = answer.first, second = answer.second;
    }
    write(*pHandle, MEMORY, first, second);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
    GPUKERNEL_CURRENT(connection);
    if (!worker_shares(*context_stack().back()->device))
        return gpukernel::unsupported("sharing between programs, by a worker of an older version");
    SharedHandle shared;
    if (!pdptr || Flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || !read(handle, MEMORY, shared))
        return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr address;
    share_memory(*connection);
    {
        Request request(*connection, wire::FindMemoryRequest{shared.first, shared.second});
        if (CUresult error = request.send(); error != CUDA_SUCCESS) return error;
        address = request.answer<wire::FindMemoryAnswer>().address;
    }
    {
        std::lock_guard lock(opened_mutex);
        ++opened[{connection, address}];
    }
    *pdptr = address;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr dptr) {
    GPUKERNEL_CURRENT(connection);
    std::lock_guard lock(opened_mutex);
    const auto it = opened.find({connection, dptr});
    if (it == opened.end()) return CUDA_ERROR_INVALID_VALUE;
    if (!--it->second) opened.erase(it);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle* pHandle, CUevent event) {
    GPUKERNEL_CURRENT(connection);
    if (!worker_shares(*context_stack().back()->device))
        return gpukernel::unsupported("sharing between programs, by a worker of an older version");
    if (!pHandle) return CUDA_ERROR_INVALID_VALUE;
    uint64_t first, second;
    {
        Request request(*connection, wire::NameEventRequest{reinterpret_cast<uint64_t>(event)});
        if (CUresult error = request.send(); error != CUDA_SUCCESS) return error;
        const auto answer = request.answer<wire::NameEventAnswer>();
        first = answer.first, second = answer.second;
    }
    write(*pHandle, EVENT, first, second);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcOpenEventHandle(CUevent* phEvent, CUipcEventHandle handle) {
    GPUKERNEL_CURRENT(connection);
    if (!worker_shares(*context_stack().back()->device))
        return gpukernel::unsupported("sharing between programs, by a worker of an older version");
    SharedHandle shared;
    if (!phEvent || !read(handle, EVENT, shared)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t name;
    {
        Request request(*connection, wire::OpenEventRequest{shared.first, shared.second, {}});
        name = request.name_handle();
        if (CUresult error = request.send(); error != CUDA_SUCCESS) return error;
    }
    *phEvent = reinterpret_cast<CUevent>(name);
    return CUDA_SUCCESS;
}
