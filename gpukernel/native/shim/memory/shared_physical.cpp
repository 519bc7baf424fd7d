// Physical memory that programs of one lease share by file descriptors (driver API, chapter "Virtual Memory
// Management").  What is exported is one end of a socket, in which the name lies that the worker made up:
// whoever gets the descriptor, by whatever way of the kernel's, can read the name and opens the memory at the
// worker.
//
// As in CUDA a descriptor keeps the memory while it is open anywhere.  This process has the socket's other
// end, which hangs up with the last of its descriptors; until that is seen it has one handle of the memory
// more.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "libcuda/entry_points.h"
#include "libcuda/virtual_memory.h"
#include "shim/memory/virtual_memory.h"
#include "shim/transport/foresight.h"

using namespace gpukernel::shim;
using gpukernel::libcuda::device_of_handle;
using gpukernel::libcuda::number_of_handle;
namespace wire = gpukernel::wire;

namespace {
struct Token {
    char kind[16];
    uint64_t first, second;
};
constexpr char PHYSICAL[16] = "gpukernel-physm";

struct Export {
    Device* device;
    uint64_t memory;  // the worker's number of it
    int end;          // this process's
};
std::mutex exports_mutex;
std::vector<Export> exports;
std::atomic<bool> has_exports{false};

// Takes those out of which no descriptor is open any more.  Under exports_mutex.
std::vector<Export> take_closed() {
    std::vector<pollfd> states;
    for (const Export& one : exports) states.push_back({one.end, 0, 0});
    std::vector<Export> open, closed;
    if (::poll(states.data(), states.size(), 0) <= 0) return closed;
    for (size_t i = 0; i < exports.size(); ++i) (states[i].revents ? closed : open).push_back(exports[i]);
    exports = std::move(open);
    has_exports = !exports.empty();
    return closed;
}

// A socket whose first end has the token to be read, and whose second is this process's.
bool make_ends(const Token& token, int (&ends)[2]) {
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
    if (::send(ends[1], &token, sizeof token, MSG_NOSIGNAL) == sizeof token) return true;
    ::close(ends[0]), ::close(ends[1]);
    return false;
}

// Reads the token and leaves it there for the next one who imports the descriptor.
bool read_token(int descriptor, Token& token) {
    return ::recv(descriptor, &token, sizeof token, MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC) == sizeof token &&
           std::memcmp(token.kind, PHYSICAL, sizeof PHYSICAL) == 0;
}
}  // namespace

namespace gpukernel::shim {

bool worker_shares_physical(const Device& device) {
    return device.facts.attributes[0] & wire::SHARES_PHYSICAL;
}

void end_exports() {
    if (!has_exports) return;
    std::vector<Export> closed;
    {
        std::lock_guard lock(exports_mutex);
        closed = take_closed();
    }
    for (const Export& one : closed) {  // without the lock: a reset holds the connection and then takes it
        ::close(one.end);
        ask(one.device->connection, wire::VirtualMemory::release, {one.memory});
    }
}

void forget_exports(const Device& device) {
    std::lock_guard lock(exports_mutex);
    std::erase_if(exports, [&](const Export& one) {
        if (one.device != &device) return false;
        ::close(one.end);
        return true;
    });
    has_exports = !exports.empty();
}

}  // namespace gpukernel::shim

bool gpukernel::libcuda::can_share_by(const Device& device, CUmemAllocationHandleType type) {
    return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
           worker_shares_physical(static_cast<const shim::Device&>(device));
}

CUresult CUDAAPI cuMemExportToShareableHandle(void* shareableHandle, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType handleType,
                                              unsigned long long flags) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    Device* const device = device_of_handle<Device>(handle);
    if (!shareableHandle || !device || flags) return CUDA_ERROR_INVALID_VALUE;
    if (!gpukernel::libcuda::can_share_by(*device, handleType))
        return gpukernel::unsupported("cuMemExportToShareableHandle to such a handle");
    if (refuse_to_share("cuMemExportToShareableHandle, while the CPU computes on the memory,"))
        return CUDA_ERROR_NOT_SUPPORTED;
    end_exports();
    share_memory(device->connection);
    Token token{};
    std::memcpy(token.kind, PHYSICAL, sizeof token.kind);
    const uint64_t memory = number_of_handle(handle);
    {
        Request request(device->connection, wire::NamePhysicalRequest{memory});
        if (CUresult error = request.send(); error != CUDA_SUCCESS) return error;
        const auto answer = request.answer<wire::NamePhysicalAnswer>();
        token.first = answer.first, token.second = answer.second;
    }
    int ends[2];
    if (!make_ends(token, ends)) {
        ask(device->connection, wire::VirtualMemory::release, {memory});
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    std::lock_guard lock(exports_mutex);
    exports.push_back({device, memory, ends[1]});
    has_exports = true;
    *static_cast<int*>(shareableHandle) = ends[0];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* osHandle,
                                                CUmemAllocationHandleType shHandleType) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return gpukernel::unsupported("cuMemImportFromShareableHandle of such a handle");
    if (refuse_to_share("cuMemImportFromShareableHandle, while the CPU computes on the memory,"))
        return CUDA_ERROR_NOT_SUPPORTED;
    Token token;
    if (!read_token(static_cast<int>(reinterpret_cast<intptr_t>(osHandle)), token))
        return CUDA_ERROR_INVALID_VALUE;
    end_exports();
    for (const auto& device : process()->devices) {  // the descriptor does not say whose it is
        if (!worker_shares_physical(*device)) continue;
        share_memory(device->connection);
        uint64_t memory = 0;
        {
            Request request(device->connection, wire::OpenPhysicalRequest{token.first, token.second});
            const CUresult error = request.send();
            if (error == CUDA_ERROR_INVALID_VALUE) continue;  // another's
            if (error != CUDA_SUCCESS) return error;
            memory = request.answer<wire::OpenPhysicalAnswer>().memory;
        }
        return physical_handle(*device, memory, *handle);
    }
    return CUDA_ERROR_INVALID_VALUE;
}
