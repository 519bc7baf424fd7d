// Launches, host functions, and queries about streams that this process answers.
#include "shim/modules/launch.h"

#include <algorithm>
#include <cstring>

#include "libcuda/nvtx.h"
#include "shim/graphs/capture.h"
#include "shim/managed/managed.h"
#include "shim/memory/memory.h"
#include "shim/modules/host_functions.h"
#include "shim/modules/libraries.h"
#include "shim/transport/counters.h"
#include "shim/transport/request.h"

using namespace gpukernel::shim;
namespace wire = gpukernel::wire;

namespace {
// Most parameters are pointers and numbers, for which a call of memcpy costs more than the copy.
inline void copy_parameter(char* to, const void* from, size_t size) {
    if (size == 8)
        std::memcpy(to, from, 8);
    else if (size == 4)
        std::memcpy(to, from, 4);
    else
        std::memcpy(to, from, size);
}

// Fills a block of layout.bytes, in a buffer of `room` bytes, of which more may be overwritten.
CUresult fill(const Layout& layout, char* block, size_t room, void** params, void** extra) {
    constexpr size_t FEW = 64;
    if (!params && !extra && !layout.parameters.empty()) return CUDA_ERROR_INVALID_VALUE;
    if (layout.bytes <= FEW && room >= FEW)
        std::memset(block, 0, FEW);  // a few instructions, since the size is known here
    else if (layout.bytes)
        std::memset(block, 0, layout.bytes);
    if (extra) {
        const gpukernel::libcuda::ParameterBuffer from = gpukernel::libcuda::buffer_of(extra);
        if (from.data) std::memcpy(block, from.data, std::min<size_t>(from.bytes, layout.bytes));
    } else {
        for (size_t i = 0; i < layout.parameters.size(); ++i)
            copy_parameter(block + layout.parameters[i].offset, params[i], layout.parameters[i].size);
    }
    return CUDA_SUCCESS;
}

CUresult queue(Connection& connection, const void* function, const unsigned (&shape)[6], unsigned shared,
               wire::LaunchMode mode, CUstream stream, const char* block, size_t bytes) {
    if (CUresult error = map_parameters(block, bytes); error != CUDA_SUCCESS) return error;
    const DeviceWork work(connection, stream);
    const uint64_t of = stream_name(connection, stream);
    if (const std::string_view range = gpukernel::libcuda::nvtx_range();
        !range.empty() && context_stack().back()->device->facts.attributes[0] & wire::WANTS_RANGES) {
        wire::LaunchInRangeRequest message{
            {reinterpret_cast<uint64_t>(function), of, {}, shared, mode}, range, {block, bytes}};
        std::memcpy(message.launch.shape, shape, sizeof shape);
        Request request(connection, message);
        ++counters.launches;
        return request.queue();
    }
    // Filled in place: a copy of what was just stored in parts stalls.
    wire::LaunchRequest message{{reinterpret_cast<uint64_t>(function), of, {}, shared, mode}, {block, bytes}};
    std::memcpy(message.launch.shape, shape, sizeof shape);
    Request request(connection, message);
    ++counters.launches;
    return request.queue();
}

// Checks clusters: the grid must be a multiple of them, and the device must support them.
CUresult possible(const unsigned (&shape)[6], wire::LaunchMode mode) {
    unsigned blocks = 1;
    for (int side = 0; side < 3; ++side) {
        if (!mode.cluster[side] || shape[side] % mode.cluster[side]) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
        blocks *= mode.cluster[side];
    }
    CUdevice device;
    int able = 0;
    if (CUresult error = cuCtxGetDevice(&device); error != CUDA_SUCCESS) return error;
    cuDeviceGetAttribute(&able, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, device);
    return able || blocks == 1
               ? CUDA_SUCCESS
               : gpukernel::unsupported("a launch with clusters of several blocks on this device");
}
bool in_clusters(wire::LaunchMode mode) { return mode.cluster[0] || mode.cluster[1] || mode.cluster[2]; }

// Checks the shape, so that one that no device accepts is an error of the launch itself, as programs expect.
CUresult possible(const unsigned (&shape)[6], const Layout& layout) {
    const uint64_t threads = uint64_t{shape[3]} * shape[4] * shape[5];
    if (!shape[0] || !shape[1] || !shape[2] || !threads || shape[3] > 1024 || shape[4] > 1024 ||
        shape[5] > 64 || threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    if (threads <= layout.most_threads) return CUDA_SUCCESS;
    // Beyond what the kernel declares (.maxntid), or beyond the registers of a multiprocessor.
    return threads * layout.registers > 65536 ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

namespace gpukernel::shim {

bool mode_of(const libcuda::LaunchShape& shape, wire::LaunchMode& mode) {
    mode.cooperative = shape.cooperative;
    if (!(shape.cluster[0] | shape.cluster[1] | shape.cluster[2])) {
        std::memset(mode.cluster, 0, sizeof mode.cluster);
        return true;
    }
    for (int side = 0; side < 3; ++side) {
        if (shape.cluster[side] > UINT8_MAX) return false;
        mode.cluster[side] = static_cast<uint8_t>(shape.cluster[side]);
    }
    return true;
}

bool read_attribute(CUlaunchAttributeID id, const CUlaunchAttributeValue& value, wire::LaunchMode& mode) {
    libcuda::LaunchShape shape;
    shape.cooperative = mode.cooperative != 0;
    std::copy(std::begin(mode.cluster), std::end(mode.cluster), shape.cluster);
    libcuda::read_attribute(id, value, shape);
    return mode_of(shape, mode);
}

CUresult pack(Connection& connection, KernelCall& call, void** params, void** extra) {
    if (!call.named) call.named = call.function;
    if (CUresult error = name_there(connection, call.function); error != CUDA_SUCCESS) return error;
    if (CUresult error = layout_of(connection, call.function, call.layout); error != CUDA_SUCCESS)
        return error;
    call.block.resize(call.layout->bytes);
    return fill(*call.layout, call.block.data(), call.block.size(), params, extra);
}

CUresult queue(Connection& connection, const KernelCall& call, CUstream stream) {
    return ::queue(connection, call.function, call.shape, call.shared, call.mode, stream, call.block.data(),
                   call.block.size());
}

}  // namespace gpukernel::shim

CUresult gpukernel::libcuda::launch(const void* function, const LaunchShape& shape, CUstream stream,
                                    void** params, void** extra) {
    wire::LaunchMode mode;
    if (!mode_of(shape, mode)) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    GPUKERNEL_CURRENT(connection);
    const void* const named = function;
    if (CUresult error = name_there(*connection, function); error != CUDA_SUCCESS) return error;
    if (capturing()) {
        KernelCall call{function, {}, shape.shared_bytes, mode, nullptr, {}, named};
        std::memcpy(call.shape, shape.sides, sizeof call.shape);
        if (Captured captured = captured_launch(*connection, call, params, extra, stream)) return *captured;
    }
    // The kernel that this thread launched last is cached, since it is the most likely next one.
    struct Last {
        const void* function;
        const Connection* of;
        const Layout* layout;
    };
    static GPUKERNEL_STATIC_THREAD_LOCAL Last last{};
    if (last.function != function || last.of != connection || !last.layout) {
        static thread_local std::shared_ptr<const Layout> kept;
        if (CUresult error = layout_of(*connection, function, kept); error != CUDA_SUCCESS) return error;
        last = {function, connection, kept.get()};
    }
    const Layout* const layout = last.layout;
    if (CUresult error = possible(shape.sides, *layout); error != CUDA_SUCCESS) return error;
    if (in_clusters(mode))
        if (CUresult error = possible(shape.sides, mode); error != CUDA_SUCCESS) return error;
    char block[MOST_PARAMETER_BYTES];
    if (CUresult error = fill(*layout, block, sizeof block, params, extra); error != CUDA_SUCCESS)
        return error;
    return queue(*connection, function, shape.sides, shape.shared_bytes, mode, stream, block, layout->bytes);
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void* userData) {
    GPUKERNEL_CURRENT(connection);
    if (!fn) return CUDA_ERROR_INVALID_VALUE;
    if (capturing())
        if (Captured captured = captured_host(*connection, fn, userData, hStream)) return *captured;
    return call_in_order(*connection, {fn, nullptr, hStream, userData});
}
CUresult CUDAAPI cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void* userData,
                                     unsigned int flags) {
    if (!callback || flags) return CUDA_ERROR_INVALID_VALUE;
    GPUKERNEL_CURRENT(connection);
    if (capturing())
        if (Captured captured = captured_refusal(*connection, hStream)) return *captured;
    return call_in_order(*connection, {nullptr, callback, hStream, userData});
}

CUresult CUDAAPI cuStreamGetCtx(CUstream hStream, CUcontext* pctx) {
    const Device* const device = device_named(hStream);
    const bool current = !context_stack().empty() && context_stack().back()->device == device;
    if (!pctx || !device || current) return cuCtxGetCurrent(pctx);
    *pctx = device->primary.get();
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetDevice(CUstream hStream, CUdevice* device) {
    const Device* const named = device_named(hStream);
    if (!device || !named) return cuCtxGetDevice(device);
    *device = named->index;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetId(CUstream hStream, unsigned long long* streamId) {
    GPUKERNEL_CURRENT(connection);
    if (!streamId) return CUDA_ERROR_INVALID_VALUE;
    *streamId = reinterpret_cast<unsigned long long>(hStream);
    return CUDA_SUCCESS;
}
