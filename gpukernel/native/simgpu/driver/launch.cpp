// Launches (driver API chapter "Execution Control").
#include "launch.h"

#include <algorithm>
#include <cstring>

namespace gpukernel::simgpu {
CUresult cluster_of(const Device& device, const Kernel& kernel, Dim3 named, Dim3& cluster, bool& explicitly) {
    const Dim3& required = kernel.cluster;
    const bool names = named.x || named.y || named.z, requires_ = required.x || required.y || required.z;
    explicitly = names || requires_;
    if (!explicitly) {
        cluster = {};
        return kernel.cluster_must_be_set ? CUDA_ERROR_INVALID_CLUSTER_SIZE : CUDA_SUCCESS;
    }
    cluster = names ? named : required;
    if (names && requires_ && (named.x != required.x || named.y != required.y || named.z != required.z))
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    const uint64_t most = largest_cluster(kernel);
    if (cluster.x > LARGEST_CLUSTER || cluster.y > LARGEST_CLUSTER || cluster.z > LARGEST_CLUSTER ||
        !cluster.volume() || cluster.volume() > most ||
        (kernel.info->max_cluster && cluster.volume() > kernel.info->max_cluster))
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    if (cluster.volume() > 1 && device.model->major < 9)
        return gpukernel::unsupported(
            "a launch with clusters of several blocks, before compute capability 9.0,");
    return CUDA_SUCCESS;
}

Shape shape_of(const CUlaunchConfig& config) {
    Shape shape{{config.gridDimX, config.gridDimY, config.gridDimZ},
                {config.blockDimX, config.blockDimY, config.blockDimZ},
                config.sharedMemBytes};
    for (unsigned i = 0; i < config.numAttrs; ++i) {
        const CUlaunchAttribute& a = config.attrs[i];
        if (a.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) shape.cooperative = a.value.cooperative != 0;
        if (a.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            shape.cluster = {a.value.clusterDim.x, a.value.clusterDim.y, a.value.clusterDim.z};
    }
    return shape;
}
}  // namespace gpukernel::simgpu

using namespace gpukernel::simgpu;

namespace {
CUresult pack(const KernelInfo& info, void** params, void** extra, std::vector<char>& block) {
    block.assign(std::max<size_t>(info.param_bytes, 1), 0);
    if (extra) {
        const void* buffer = nullptr;
        size_t size = 0;
        for (int i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
            if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[i + 1];
            if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *static_cast<size_t*>(extra[i + 1]);
        }
        if (!buffer && info.param_bytes) return CUDA_ERROR_INVALID_VALUE;
        std::memcpy(block.data(), buffer, std::min<size_t>(size, info.param_bytes));
        return CUDA_SUCCESS;
    }
    if (!params && !info.params.empty()) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < info.params.size(); ++i)
        std::memcpy(block.data() + info.params[i].offset, params[i], info.params[i].size);
    return CUDA_SUCCESS;
}

CUresult launch(const void* handle, Shape shape, CUstream hStream, void** params, void** extra) {
    GPUKERNEL_HERE(device);
    Kernel* function = driver()->functions.get<Kernel>(handle);
    Stream* stream;
    if (!function || !stream_of(hStream, stream) || stream->device != device)
        return CUDA_ERROR_INVALID_HANDLE;
    const Dim3 g = shape.grid, b = shape.block;
    const uint64_t threads = uint64_t{b.x} * b.y * b.z;
    if (!g.x || !g.y || !g.z || !threads || g.x > 2147483647u || g.y > 65535 || g.z > 65535 || b.x > 1024 ||
        b.y > 1024 || b.z > 64)
        return CUDA_ERROR_INVALID_VALUE;
    if (threads > 1024 || threads > function->info->max_threads) return CUDA_ERROR_INVALID_VALUE;
    if (shape.shared > static_cast<unsigned>(function->dynamic_shared_limit) ||
        uint64_t{shape.shared} + function->info->static_shared_bytes >
            static_cast<uint64_t>(device->model->shared_per_block_optin))
        return CUDA_ERROR_INVALID_VALUE;
    bool in_clusters;
    if (CUresult error = cluster_of(*device, *function, shape.cluster, shape.cluster, in_clusters);
        error != CUDA_SUCCESS)
        return error;
    const Dim3 c = shape.cluster;
    if (g.x % c.x || g.y % c.y || g.z % c.z) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    if (shape.cooperative) {  // every block is resident at once
        int each = 0;
        if (CUresult error =
                blocks_per_multiprocessor(&each, handle, static_cast<int>(threads), shape.shared);
            error != CUDA_SUCCESS)
            return error;
        if (uint64_t{g.x} * g.y > uint64_t(std::max(each, 1)) * device->model->multiprocessors / g.z)
            return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    }
    auto block = std::make_shared<std::vector<char>>();
    if (CUresult error = pack(*function->info, params, extra, *block); error != CUDA_SUCCESS) return error;
    schedule().submit(*stream, Engine::kernels,
                      [device, function, shape, in_clusters, block, textures = device->textures.now()] {
                          Launch launch;
                          launch.grid = shape.grid, launch.block = shape.block;
                          launch.cluster = shape.cluster, launch.in_clusters = in_clusters;
                          launch.dynamic_shared_bytes = shape.shared;
                          launch.cooperative = shape.cooperative;
                          launch.params = block->data();
                          launch.textures = textures;
                          launch.print = [device](std::string_view text) {
                              // A full buffer keeps the newest, as the guide says of CUDA's ("Formatted
                              // Output", "Limitations").
                              const size_t most =
                                  std::min<size_t>(device->limits[CU_LIMIT_PRINTF_FIFO_SIZE], 64 << 20);
                              std::lock_guard lock(device->print_mutex);
                              device->printed += text;
                              if (device->printed.size() > 2 * most)
                                  device->printed.erase(0, device->printed.size() - most);
                          };
                          Result result = function->owner->image->run(function->info->name, launch);
                          if (!result) device->report(result);
                          return code_of(result.status);
                      });
    return CUDA_SUCCESS;
}
}  // namespace

CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                void** kernelParams, void** extra) {
    return launch(f, {{gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes},
                  hStream, kernelParams, extra);
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                                  void** extra) {
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = launch(f, shape_of(*config), config->hStream, kernelParams, extra);
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
    return launch(f,
                  {{gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes, true},
                  hStream, kernelParams, nullptr);
}
