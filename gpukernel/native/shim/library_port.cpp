// Calls of the math libraries (libraries/port.h), sent in order with the driver's.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "libraries/port.h"
#include "shim/graphs/capture.h"
#include "shim/graphs/graphs.h"
#include "shim/managed/managed.h"
#include "shim/memory/memory.h"
#include "shim/transport/counters.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

namespace {
std::string_view bytes_of(const LibraryCall& call) {
    return {reinterpret_cast<const char*>(call.arguments.data()), call.arguments.size() * sizeof(uint64_t)};
}
LibraryCall copy_of(const libraries::PortCall& call) {
    return {call.library, call.function, {call.arguments, call.arguments + call.words}};
}

CUresult queue_call(const libraries::PortCall* asked, bool* captured) {
    *captured = false;
    GPUKERNEL_CURRENT(connection);
    const LibraryCall call = copy_of(*asked);
    if (capturing())
        if (Captured answer = captured_library(*connection, call, asked->stream))
            return *captured = *answer == CUDA_SUCCESS, *answer;
    return queue(*connection, call, asked->stream);
}

CUresult ask(const libraries::PortCall* asked, bool waits, int32_t* status, void* outputs, size_t size,
             size_t* got) {
    GPUKERNEL_CURRENT(connection);
    if (waits && capturing())
        if (Captured answer = captured_refusal(*connection, asked->stream)) return *answer;
    const LibraryCall call = copy_of(*asked);
    if (CUresult error = map_parameters(bytes_of(call).data(), bytes_of(call).size()); error != CUDA_SUCCESS)
        return error;
    std::optional<DeviceWork> work;
    if (waits) work.emplace(*connection, asked->stream);
    const uint64_t of = stream_name(*connection, asked->stream);
    Request request(*connection, wire::LibraryAskRequest{call.library, call.function, of, bytes_of(call)});
    const CUresult result = request.send();
    if (result != CUDA_SUCCESS) return result;
    const auto answer = request.answer<wire::LibraryAskAnswer>();
    if (request.failed() || answer.outputs.size() > size) return CUDA_ERROR_UNKNOWN;
    *status = answer.status, *got = answer.outputs.size();
    if (*got) std::memcpy(outputs, answer.outputs.data(), *got);
    return CUDA_SUCCESS;
}

uint64_t name() {
    CUresult error;
    Connection* const connection = current(error);
    if (!connection) return 0;
    std::lock_guard lock(connection->mutex);
    return connection->next_name();
}

int current_device() {
    CUresult error;
    if (!current(error)) return -1;
    const Device& device = *context_stack().back()->device;
    return device.index | static_cast<int>((device.resets & 0x7fff) << 8);
}
}  // namespace

CUresult queue(Connection& connection, const LibraryCall& call, CUstream stream) {
    const std::string_view bytes = bytes_of(call);
    if (CUresult error = map_parameters(bytes.data(), bytes.size()); error != CUDA_SUCCESS) return error;
    const DeviceWork work(connection, stream);
    const uint64_t of = stream_name(connection, stream);
    Request request(connection, wire::LibraryCallRequest{call.library, call.function, of, bytes});
    ++counters.launches;
    return request.queue();
}

}  // namespace gpukernel::shim

extern "C" __attribute__((visibility("default"))) const gpukernel::libraries::Port* gpukernel_library_port(
    uint32_t version) {
    using namespace gpukernel::shim;
    static constexpr gpukernel::libraries::Port port{queue_call, ask, name, current_device};
    return version == gpukernel::libraries::PORT_VERSION ? &port : nullptr;
}
static_assert(std::is_same_v<decltype(&gpukernel_library_port), gpukernel::libraries::FindPort>);
