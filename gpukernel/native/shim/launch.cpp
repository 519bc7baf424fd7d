// Launches, host functions, and the questions about streams that need no worker.
#include "launch.h"

#include <algorithm>
#include <cstring>

#include "capture.h"
#include "counters.h"
#include "host_functions.h"
#include "managed.h"
#include "request.h"

using namespace gpukernel::shim;
namespace wire = gpukernel::wire;
using wire::Special;

namespace {
CUresult fill(const Layout& layout, char* block, void** params, void** extra) {
    if (!params && !extra && !layout.parameters.empty()) return CUDA_ERROR_INVALID_VALUE;
    std::memset(block, 0, layout.bytes);
    if (extra) {
        const void* from = nullptr;
        size_t size = 0;
        for (int i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
            if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) from = extra[i + 1];
            if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *static_cast<size_t*>(extra[i + 1]);
        }
        if (from) std::memcpy(block, from, std::min<size_t>(size, layout.bytes));
    } else {
        for (size_t i = 0; i < layout.parameters.size(); ++i)
            std::memcpy(block + layout.parameters[i].offset, params[i], layout.parameters[i].size);
    }
    return CUDA_SUCCESS;
}

CUresult queue(Connection& connection, const void* function, const unsigned (&shape)[6], unsigned shared,
               wire::LaunchMode mode, CUstream stream, const char* block, size_t bytes) {
    const DeviceWork work(connection, stream);
    const uint64_t of = stream_name(connection, stream);
    Request request(connection, Special::launch);
    wire::Launch head{reinterpret_cast<uint64_t>(function), of, {}, shared, mode};
    std::memcpy(head.shape, shape, sizeof shape);
    request.put(head);
    request.bytes(block, bytes);
    ++counters.launches;
    return request.queue();
}

// Clusters are cut out of the grid without a rest, and are for devices that have them.
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

// A shape that no device takes is an error of the launch itself and not of a later call, as programs expect.
CUresult possible(const unsigned (&shape)[6], const Layout& layout) {
    const uint64_t threads = uint64_t{shape[3]} * shape[4] * shape[5];
    if (!shape[0] || !shape[1] || !shape[2] || !threads || shape[3] > 1024 || shape[4] > 1024 ||
        shape[5] > 64 || threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    if (threads <= layout.most_threads) return CUDA_SUCCESS;
    // Beyond what the kernel declares (.maxntid), or beyond the registers of a multiprocessor.
    return threads * layout.registers > 65536 ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES : CUDA_ERROR_INVALID_VALUE;
}

CUresult launch(const void* function, const unsigned (&shape)[6], unsigned shared, CUstream stream,
                wire::LaunchMode mode, void** params, void** extra) {
    GPUKERNEL_CURRENT(connection);
    if (capturing()) {
        KernelCall call{function, {}, shared, mode, nullptr, {}};
        std::memcpy(call.shape, shape, sizeof shape);
        if (Captured captured = captured_launch(*connection, call, params, extra, stream)) return *captured;
    }
    // The last kernel that this thread launched is the likeliest to be the next.
    static thread_local const void* last = nullptr;
    static thread_local const Connection* of = nullptr;
    static thread_local std::shared_ptr<const Layout> layout;
    if (last != function || of != connection || !layout) {
        if (CUresult error = layout_of(*connection, function, layout); error != CUDA_SUCCESS) return error;
        last = function, of = connection;
    }
    if (CUresult error = possible(shape, *layout); error != CUDA_SUCCESS) return error;
    if (in_clusters(mode))
        if (CUresult error = possible(shape, mode); error != CUDA_SUCCESS) return error;
    char block[MOST_PARAMETER_BYTES];
    if (CUresult error = fill(*layout, block, params, extra); error != CUDA_SUCCESS) return error;
    return queue(*connection, function, shape, shared, mode, stream, block, layout->bytes);
}
}  // namespace

namespace gpukernel::shim {

bool read_attribute(CUlaunchAttributeID id, const CUlaunchAttributeValue& value, wire::LaunchMode& mode) {
    if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) mode.cooperative = value.cooperative != 0;
    if (id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) return true;
    const unsigned sides[] = {value.clusterDim.x, value.clusterDim.y, value.clusterDim.z};
    for (int side = 0; side < 3; ++side) {
        if (sides[side] > UINT8_MAX) return false;
        mode.cluster[side] = static_cast<uint8_t>(sides[side]);
    }
    return true;
}

bool read_attributes(const CUlaunchConfig& config, wire::LaunchMode& mode) {
    for (unsigned i = 0; i < config.numAttrs; ++i)
        if (!read_attribute(config.attrs[i].id, config.attrs[i].value, mode)) return false;
    return true;
}

CUresult pack(Connection& connection, KernelCall& call, void** params, void** extra) {
    if (CUresult error = layout_of(connection, call.function, call.layout); error != CUDA_SUCCESS)
        return error;
    call.block.resize(call.layout->bytes);
    return fill(*call.layout, call.block.data(), params, extra);
}

CUresult queue(Connection& connection, const KernelCall& call, CUstream stream) {
    return ::queue(connection, call.function, call.shape, call.shared, call.mode, stream, call.block.data(),
                   call.block.size());
}

}  // namespace gpukernel::shim

CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                void** kernelParams, void** extra) {
    return launch(f, {gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ}, sharedMemBytes, hStream,
                  {}, kernelParams, extra);
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                                  void** extra) {
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    wire::LaunchMode mode;
    if (!read_attributes(*config, mode)) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    CUresult result = launch(f,
                             {config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                              config->blockDimY, config->blockDimZ},
                             config->sharedMemBytes, config->hStream, mode, kernelParams, extra);
    // Events of a launch may come when all of it is done: that is later than they might, and never too early.
    for (unsigned i = 0; i < config->numAttrs && result == CUDA_SUCCESS; ++i) {
        const CUlaunchAttribute& a = config->attrs[i];
        if (a.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
            result = cuEventRecord(a.value.programmaticEvent.event, config->hStream);
        if (a.id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
            result = cuEventRecord(a.value.launchCompletionEvent.event, config->hStream);
    }
    return result;
}

CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                           unsigned int gridDimZ, unsigned int blockDimX,
                                           unsigned int blockDimY, unsigned int blockDimZ,
                                           unsigned int sharedMemBytes, CUstream hStream,
                                           void** kernelParams) {
    return launch(f, {gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ}, sharedMemBytes, hStream,
                  {.cooperative = 1}, kernelParams, nullptr);
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

CUresult CUDAAPI cuStreamGetCtx(CUstream hStream, CUcontext* pctx) { return cuCtxGetCurrent(pctx); }
CUresult CUDAAPI cuStreamGetDevice(CUstream hStream, CUdevice* device) { return cuCtxGetDevice(device); }
CUresult CUDAAPI cuStreamGetId(CUstream hStream, unsigned long long* streamId) {
    GPUKERNEL_CURRENT(connection);
    if (!streamId) return CUDA_ERROR_INVALID_VALUE;
    *streamId = reinterpret_cast<unsigned long long>(hStream);
    return CUDA_SUCCESS;
}
