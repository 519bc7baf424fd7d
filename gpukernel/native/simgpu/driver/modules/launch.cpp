// Launches (driver API chapter "Execution Control").
#include "simgpu/driver/modules/launch.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "common/kernel_table.h"
#include "common/memory_check.h"
#include "libcuda/nvtx.h"
#include "simgpu/profile/session.h"

namespace gpukernel::simgpu {
bool block_possible(const Device& device, const Kernel& kernel, uint64_t threads, uint64_t shared) {
    return threads <= 1024 && threads <= kernel.info->max_threads &&
           shared <= static_cast<uint64_t>(kernel.dynamic_shared_limit) &&
           shared + kernel.info->static_shared_bytes <=
               static_cast<uint64_t>(device.model->shared_per_block_optin);
}

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
}  // namespace gpukernel::simgpu

using namespace gpukernel::simgpu;

namespace {
// A launch's parameters until it runs.  Small ones are a part of what waits: the number of launches that wait
// bounds their sum.
class Parameters {
  public:
    // Room for so many bytes, all zero; false where the program may have no more of the host's memory.
    bool make_room(uint32_t bytes) {
        if (bytes <= sizeof small_) {
            std::memset(small_, 0, bytes);
            return true;
        }
        large_ = std::make_shared<Large>();
        if (!large_->share.grow(bytes)) return false;
        large_->bytes.resize(bytes);
        return true;
    }
    const char* data() const { return large_ ? large_->bytes.data() : small_; }
    char* data() { return large_ ? large_->bytes.data() : small_; }

  private:
    struct Large {
        HostShare share;
        std::vector<char> bytes;
    };
    char small_[128];
    std::shared_ptr<Large> large_;
};

CUresult pack(const KernelInfo& info, void** params, void** extra, Parameters& block) {
    if (!block.make_room(info.param_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (extra) {
        const gpukernel::libcuda::ParameterBuffer buffer = gpukernel::libcuda::buffer_of(extra);
        if (!buffer.data && info.param_bytes) return CUDA_ERROR_INVALID_VALUE;
        std::memcpy(block.data(), buffer.data, std::min<size_t>(buffer.bytes, info.param_bytes));
        return CUDA_SUCCESS;
    }
    if (!params && !info.params.empty()) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < info.params.size(); ++i)
        std::memcpy(block.data() + info.params[i].offset, params[i], info.params[i].size);
    return CUDA_SUCCESS;
}

// As the process's environment has it, which tells the first warning only.
gpukernel::MemoryCheck usual_check() {
    using namespace gpukernel;
    const char* const word = std::getenv(MEMORY_CHECK_VARIABLE);
    const std::optional<bool> strict = strict_check(word);
    if (!strict)
        log_line(std::string(MEMORY_CHECK_VARIABLE) + "=" + word +
                 " is neither strict nor hardware: hardware it is");
    return {strict.value_or(false), 0, [](uint64_t, const char* sentence) {
                static std::atomic<bool> told{false};
                if (!told.exchange(true)) std::fputs(sentence, stderr);
            }};
}
thread_local std::optional<gpukernel::MemoryCheck> own_check;

// What a worker says of its program's launch.
thread_local std::string given_range;

std::string range_of_this_thread() {
    return given_range.empty() ? std::string(gpukernel::libcuda::nvtx_range()) : given_range;
}

gpukernel::MemoryCheck check_of_this_thread() {
    static const gpukernel::MemoryCheck usual = usual_check();
    return own_check.value_or(usual);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void gpukernel_set_memory_check(
    const gpukernel::MemoryCheck* check) {
    own_check = *check;
}
static_assert(std::is_same_v<decltype(&gpukernel_set_memory_check), gpukernel::SetMemoryCheck>);

extern "C" __attribute__((visibility("default"))) void gpukernel_set_range(const char* text, size_t bytes) {
    // No text of a program is more than so many bytes of a table.  It is shown to people: nothing of it moves
    // a terminal's cursor.
    given_range.assign(text, std::min(bytes, gpukernel::MOST_RANGE));
    std::replace_if(
        given_range.begin(), given_range.end(),
        [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
}
static_assert(std::is_same_v<decltype(&gpukernel_set_range), gpukernel::SetRange>);

CUresult gpukernel::libcuda::launch(const void* handle, const LaunchShape& shape, CUstream hStream,
                                    void** params, void** extra) {
    GPUKERNEL_HERE(device);
    Kernel* function = launchable(handle);
    Stream* stream;
    if (!function || !stream_of(hStream, stream) || stream->device != device)
        return CUDA_ERROR_INVALID_HANDLE;
    if (CUresult error = prepare(*function); error != CUDA_SUCCESS) return error;
    const Dim3 g = grid_of(shape), b = block_of(shape);
    const uint64_t threads = uint64_t{b.x} * b.y * b.z;
    if (!g.x || !g.y || !g.z || !threads || g.x > 2147483647u || g.y > 65535 || g.z > 65535 || b.x > 1024 ||
        b.y > 1024 || b.z > 64)
        return CUDA_ERROR_INVALID_VALUE;
    if (!block_possible(*device, *function, threads, shape.shared_bytes)) return CUDA_ERROR_INVALID_VALUE;
    bool in_clusters;
    Dim3 c;
    if (CUresult error = cluster_of(*device, *function, cluster_of(shape), c, in_clusters);
        error != CUDA_SUCCESS)
        return error;
    if (g.x % c.x || g.y % c.y || g.z % c.z) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    if (shape.cooperative) {  // all blocks must be resident at once
        int each = 0;
        if (CUresult error =
                blocks_per_multiprocessor(&each, handle, static_cast<int>(threads), shape.shared_bytes);
            error != CUDA_SUCCESS)
            return error;
        if (uint64_t{g.x} * g.y > uint64_t(std::max(each, 1)) * device->model->multiprocessors / g.z)
            return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    }
    Parameters block;
    if (CUresult error = pack(*function->info, params, extra, block); error != CUDA_SUCCESS) return error;
    std::shared_ptr<const Textures> textures;
    try {
        textures = device->textures.now();
    } catch (const std::bad_alloc&) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    std::string range;
    if (profile::counting()) range = range_of_this_thread();
    schedule().submit(
        *stream, Engine::kernels,
        [device, function, g, b, c, in_clusters, range = std::move(range), shared = shape.shared_bytes,
         cooperative = shape.cooperative, block = std::move(block), textures = std::move(textures),
         program = Schedule::program_of(*stream), check = check_of_this_thread()] {
            Launch launch;
            launch.grid = g, launch.block = b;
            launch.cluster = c, launch.in_clusters = in_clusters;
            launch.dynamic_shared_bytes = shared;
            launch.cooperative = cooperative;
            launch.params = block.data();
            launch.textures = textures;
            launch.gate = device->gate.load();
            const Residency residency =
                residency_of(*device->model, *function->info, static_cast<int>(b.volume()), shared);
            launch.resident_blocks = static_cast<uint32_t>(residency.blocks);
            launch.most_warps = static_cast<uint32_t>(residency.most_warps);
            launch.limit = residency.limit;
            launch.range = range;
            launch.strict = check.strict;
            launch.warn = [&check](const std::string& text) {
                check.tell(check.program, (std::string(WARNING) + text + ".\n").c_str());
            };
            launch.print = [device](std::string_view text) {
                device->printed.add(text, device->limits[CU_LIMIT_PRINTF_FIFO_SIZE]);
            };
            if (program) launch.cancel = &program->cancel;
            Result result = function->owner->image->run(function->info->name, launch);
            if (program && program->over) return CUDA_SUCCESS;  // nobody will hear of it
            if (!result) device->report(result);
            return code_of(result.status);
        });
    return CUDA_SUCCESS;
}

extern "C" __attribute__((visibility("default"))) int gpukernel_set_execution_gate(
    int number, const gpukernel::ExecutionGate* gate) {
    Device* const device = device_at(number);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (!gate || !gate->closed || !gate->begun || !gate->ended || !gate->blocked || !gate->running)
        return CUDA_ERROR_INVALID_VALUE;
    device->gate = new gpukernel::ExecutionGate(*gate);  // kernels may read it until the process ends
    return CUDA_SUCCESS;
}
static_assert(std::is_same_v<decltype(&gpukernel_set_execution_gate), gpukernel::SetExecutionGate>);

extern "C" __attribute__((visibility("default"))) uint64_t
gpukernel_kernels(void (*row)(void* to, const gpukernel::KernelUse& one), void* to) {
    return profile::read_kernels(row, to);
}
static_assert(std::is_same_v<decltype(&gpukernel_kernels), gpukernel::ReadKernels>);

extern "C" __attribute__((visibility("default"))) uint64_t gpukernel_profile(
    gpukernel::Profiling what, void (*row)(void* to, const gpukernel::KernelProfile& one), void* to) {
    return profile::control(what, row, to);
}
static_assert(std::is_same_v<decltype(&gpukernel_profile), gpukernel::ProfileKernels>);
