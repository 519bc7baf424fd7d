#include "shim/transport/spares.h"

#include <algorithm>
#include <iterator>

#include "shim/transport/request.h"

namespace gpukernel::shim {

namespace {
using wire::CustomCall;
using wire::DriverCall;

constexpr uint16_t QUIET[] = {
    static_cast<uint16_t>(CustomCall::launch),
    static_cast<uint16_t>(CustomCall::copy_to_device),
    static_cast<uint16_t>(CustomCall::copy_to_host),
    static_cast<uint16_t>(CustomCall::library_call),
    static_cast<uint16_t>(CustomCall::host_function),
    static_cast<uint16_t>(CustomCall::attend),
    static_cast<uint16_t>(CustomCall::keep_block),
    static_cast<uint16_t>(CustomCall::take_block),
    static_cast<uint16_t>(DriverCall::cuMemAlloc_v2),  // gives them back where it has not enough
    static_cast<uint16_t>(DriverCall::cuMemFree_v2),
    static_cast<uint16_t>(DriverCall::cuMemsetD8_v2),
    static_cast<uint16_t>(DriverCall::cuMemsetD32_v2),
    static_cast<uint16_t>(DriverCall::cuMemsetD8Async),
    static_cast<uint16_t>(DriverCall::cuMemsetD32Async),
    static_cast<uint16_t>(DriverCall::cuMemcpyDtoD_v2),
    static_cast<uint16_t>(DriverCall::cuMemcpyDtoDAsync_v2),
    static_cast<uint16_t>(DriverCall::cuCtxSynchronize),
    static_cast<uint16_t>(DriverCall::cuStreamSynchronize),
    static_cast<uint16_t>(DriverCall::cuStreamQuery),
    static_cast<uint16_t>(DriverCall::cuStreamWaitEvent),
    static_cast<uint16_t>(DriverCall::cuEventRecord),
    static_cast<uint16_t>(DriverCall::cuEventQuery),
    static_cast<uint16_t>(DriverCall::cuEventSynchronize),
};
}  // namespace

bool leaves_memory_alone(uint16_t call) {
    return std::find(std::begin(QUIET), std::end(QUIET), call) != std::end(QUIET);
}

void give_back_spares(Connection& connection) {
    Spares& spares = connection.spares;
    for (const auto& [bytes, address] : spares.kept) {
        append_request(connection, static_cast<uint16_t>(CustomCall::take_block),
                       [address](wire::Writer& to) { wire::TakeBlockRequest{address}.write(to); });
        append_request(connection, static_cast<uint16_t>(DriverCall::cuMemFree_v2),
                       [address](wire::Writer& to) { to.put<uint64_t>(address); });
    }
    spares.kept.clear();
    spares.bytes = 0;
}

void allow_spares(Connection& connection, uint64_t bytes) {
    std::lock_guard lock(connection.mutex);
    if (bytes < connection.spares.bytes) give_back_spares(connection);
    connection.spares.most = bytes;
}

void forget_spares(Connection& connection) {
    std::lock_guard lock(connection.mutex);
    give_back_spares(connection);
    connection.spares.used.clear();
}

namespace {
// Where several threads make requests, one's does not wait for what the worker still does for another.
bool is_on(Connection& connection) {
    connection.note_thread();
    if (connection.spares.most && !connection.has_several_threads()) return true;
    give_back_spares(connection);
    return false;
}

CUresult allocate(Connection& connection, CUdeviceptr& address, uint64_t bytes, bool small) {
    {
        Request request(connection, DriverCall::cuMemAlloc_v2);
        request.put<uint64_t>(bytes);
        if (CUresult error = request.send(); error != CUDA_SUCCESS) return error;
        address = request.get<CUdeviceptr>();
    }
    std::lock_guard lock(connection.mutex);
    connection.spares.blocks[address] = bytes;
    if (small) connection.spares.used[address] = bytes;
    return CUDA_SUCCESS;
}
}  // namespace

std::optional<CUresult> spare_cuMemAlloc_v2(Connection& connection, CUdeviceptr* dptr, size_t bytes) {
    if (!dptr || !bytes) return std::nullopt;
    Spares& spares = connection.spares;
    CUdeviceptr address = 0;
    bool small;
    {
        std::unique_lock lock(connection.mutex);
        small = is_on(connection) && bytes <= Spares::MOST_BLOCK;
        if (!small) give_back_spares(connection);  // more likely to find no room
        if (const auto spare = spares.kept.find(bytes); spare != spares.kept.end()) {
            address = spare->second;
            spares.kept.erase(spare), spares.bytes -= bytes;
            spares.used[address] = spares.blocks[address] = bytes;
            Request request(connection, wire::TakeBlockRequest{address}, std::move(lock));
            if (CUresult error = request.queue(); error != CUDA_SUCCESS) return error;
        }
    }
    CUresult result = address ? CUDA_SUCCESS : allocate(connection, address, bytes, small);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        {
            std::lock_guard lock(connection.mutex);
            if (spares.kept.empty()) return result;
            give_back_spares(connection);
        }
        result = allocate(connection, address, bytes, small);
    }
    if (result == CUDA_SUCCESS) *dptr = address;  // not under the mutex: it may be managed memory
    return result;
}

std::optional<CUresult> spare_cuMemFree_v2(Connection& connection, CUdeviceptr address) {
    Spares& spares = connection.spares;
    std::unique_lock lock(connection.mutex);
    const bool on = is_on(connection);
    spares.blocks.erase(address);
    const auto found = spares.used.find(address);
    if (found == spares.used.end()) {
        for (const auto& [bytes, kept] : spares.kept)
            if (kept == address) return CUDA_ERROR_INVALID_VALUE;  // freed already
        return std::nullopt;
    }
    const uint64_t bytes = found->second;
    spares.used.erase(found);
    if (!on || spares.bytes + bytes > spares.most) return std::nullopt;
    spares.kept.emplace(bytes, address), spares.bytes += bytes;
    Request request(connection, wire::KeepBlockRequest{address}, std::move(lock));
    return request.queue();
}

// What is freed in a stream's order may come back as memory of another kind.
std::optional<CUresult> spare_cuMemFreeAsync(Connection& connection, CUdeviceptr address, CUstream) {
    std::lock_guard lock(connection.mutex);
    connection.spares.used.erase(address), connection.spares.blocks.erase(address);
    return std::nullopt;
}

}  // namespace gpukernel::shim
