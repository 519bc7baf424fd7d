// Launches and occupancy (driver API chapters "Execution Control" and "Occupancy").
#include <algorithm>
#include <climits>
#include <cstring>

#include "state.h"

using namespace gpukernel::simgpu;

namespace {
struct Shape {
    Dim3 grid, block;
    unsigned shared;
    bool cooperative = false;
    Dim3 cluster{0, 0, 0};  // zeros: the launch does not say
};

constexpr uint64_t PORTABLE_CLUSTER = 8, LARGEST_CLUSTER = 16;  // blocks, of sm_90

// What clusters a launch has, of those that it names and those that its kernel wants.
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
    const uint64_t most = kernel.large_clusters ? LARGEST_CLUSTER : PORTABLE_CLUSTER;
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

CUresult blocks_per_multiprocessor(int* blocks, const void* handle, int threads, size_t shared) {
    GPUKERNEL_HERE(device);
    Kernel* function = driver()->functions.get<Kernel>(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (!blocks || threads < 1 || threads > 1024) return CUDA_ERROR_INVALID_VALUE;
    const Model& m = *device->model;
    const int warps = (threads + 31) / 32;
    int fit = std::min(m.blocks_per_multiprocessor, m.threads_per_multiprocessor / (warps * 32));
    const int registers = std::clamp<int>(function->info->registers, 16, 255) * warps * 32;
    fit = std::min(fit, 65536 / registers);
    const size_t each = shared + function->info->static_shared_bytes + (m.major >= 8 ? 1024 : 0);
    if (each) fit = std::min<int>(fit, m.shared_per_multiprocessor / each);
    *blocks = std::max(fit, 0);
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

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, CUfunction func, int blockSize,
                                                             size_t dynamicSMemSize) {
    return blocks_per_multiprocessor(numBlocks, func, blockSize, dynamicSMemSize);
}
CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* numBlocks, CUfunction func,
                                                                      int blockSize, size_t dynamicSMemSize,
                                                                      unsigned int flags) {
    return blocks_per_multiprocessor(numBlocks, func, blockSize, dynamicSMemSize);
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSizeWithFlags(int* minGridSize, int* blockSize, CUfunction func,
                                                           CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                           size_t dynamicSMemSize, int blockSizeLimit,
                                                           unsigned int flags) {
    GPUKERNEL_HERE(device);
    Kernel* function = driver()->functions.get<Kernel>(func);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (!minGridSize || !blockSize) return CUDA_ERROR_INVALID_VALUE;
    int limit = std::min<int>(function->info->max_threads, blockSizeLimit > 0 ? blockSizeLimit : 1024),
        best = 0;
    for (int threads = limit / 32 * 32; threads > 0; threads -= 32) {
        int blocks = 0;
        size_t shared = blockSizeToDynamicSMemSize ? blockSizeToDynamicSMemSize(threads) : dynamicSMemSize;
        if (CUresult error = blocks_per_multiprocessor(&blocks, func, threads, shared); error != CUDA_SUCCESS)
            return error;
        if (blocks * threads > best)
            best = blocks * threads, *blockSize = threads,
            *minGridSize = blocks * device->model->multiprocessors;
    }
    return best ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(int* minGridSize, int* blockSize, CUfunction func,
                                                  CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                  size_t dynamicSMemSize, int blockSizeLimit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                                     dynamicSMemSize, blockSizeLimit, 0);
}
CUresult CUDAAPI cuOccupancyAvailableDynamicSMemPerBlock(size_t* dynamicSmemSize, CUfunction func,
                                                         int numBlocks, int blockSize) {
    GPUKERNEL_HERE(device);
    Kernel* function = driver()->functions.get<Kernel>(func);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (!dynamicSmemSize || numBlocks < 1) return CUDA_ERROR_INVALID_VALUE;
    const size_t each = device->model->shared_per_multiprocessor / numBlocks,
                 fixed = function->info->static_shared_bytes;
    *dynamicSmemSize = each > fixed ? std::min<size_t>(each - fixed, 48 << 10) : 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuOccupancyMaxPotentialClusterSize(int* clusterSize, CUfunction func,
                                                    const CUlaunchConfig* config) {
    GPUKERNEL_HERE(device);
    Kernel* function = driver()->functions.get<Kernel>(func);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (!clusterSize || !config) return CUDA_ERROR_INVALID_VALUE;
    if (function->cluster.volume()) {
        *clusterSize = static_cast<int>(function->cluster.volume());
        return CUDA_SUCCESS;
    }
    uint64_t most = device->model->major < 9   ? 1
                    : function->large_clusters ? LARGEST_CLUSTER
                                               : PORTABLE_CLUSTER;
    if (function->info->max_cluster) most = std::min<uint64_t>(most, function->info->max_cluster);
    *clusterSize = static_cast<int>(most);
    return CUDA_SUCCESS;
}

// As many as the blocks that all multiprocessors hold make; a GPU may have fewer, since a cluster stays
// within a group of multiprocessors.
CUresult CUDAAPI cuOccupancyMaxActiveClusters(int* numClusters, CUfunction func,
                                              const CUlaunchConfig* config) {
    GPUKERNEL_HERE(device);
    Kernel* function = driver()->functions.get<Kernel>(func);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (!numClusters || !config) return CUDA_ERROR_INVALID_VALUE;
    const Shape shape = shape_of(*config);
    Dim3 cluster;
    bool explicitly;
    if (CUresult error = cluster_of(*device, *function, shape.cluster, cluster, explicitly);
        error != CUDA_SUCCESS)
        return error;
    if (!explicitly) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    int each = 0;
    const int threads = static_cast<int>(std::min<uint64_t>(shape.block.volume(), INT_MAX));
    if (CUresult error = blocks_per_multiprocessor(&each, func, threads, shape.shared); error != CUDA_SUCCESS)
        return error;
    *numClusters = static_cast<int>(uint64_t(each) * device->model->multiprocessors / cluster.volume());
    return CUDA_SUCCESS;
}
