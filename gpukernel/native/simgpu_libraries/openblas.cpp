#include "simgpu_libraries/openblas.h"

#include <dlfcn.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "libraries/library.h"
#include "simgpu_libraries/device_work.h"

namespace gpukernel::simgpu_libraries {

namespace {
void* library() {
    static void* const loaded = []() -> void* {
        ::setenv("OPENBLAS_NUM_THREADS", "1", 0);  // or it would start threads of its own when it is loaded
        for (const char* name :
             {static_cast<const char*>(std::getenv("GPUKERNEL_OPENBLAS")), "libopenblas.so.0"})
            if (void* found = name && *name ? ::dlopen(name, RTLD_NOW | RTLD_LOCAL) : nullptr) return found;
        return nullptr;
    }();
    return loaded;
}

// The wheel's names have a prefix.
void* find(const std::string& name) {
    for (const char* prefix : {"scipy_", ""})
        if (void* found = ::dlsym(library(), (prefix + name).c_str())) return found;
    return nullptr;
}
}  // namespace

bool load_openblas(std::span<const char* const> functions) {
    if (!library()) {
        libraries::complain(
            "matrix products and decompositions on a simulated GPU need OpenBLAS on its server: pip install "
            "'gpukernel[libraries]', or set GPUKERNEL_OPENBLAS to its file");
        return false;
    }
    static const bool set = [] {
        if (void* threads = find("openblas_set_num_threads")) reinterpret_cast<void (*)(int)>(threads)(1);
        return true;
    }();
    for (const char* name : functions)
        if (!find(std::string(name) + "_")) {
            libraries::complain("the OpenBLAS on this simulated GPU's server has no " + std::string(name) +
                                ", as one built without LAPACK: pip install 'gpukernel[libraries]'");
            return false;
        }
    return set;
}

void* openblas(const char* name) {
    void* const found = library() ? find(std::string(name) + "_") : nullptr;
    if (found) return found;
    std::fprintf(stderr, "gpukernel: OpenBLAS has no %s_\n", name);
    std::abort();
}

namespace {
constexpr uint64_t LEAST = 2 << 20, EACH = 4 << 10, MOST = 128 << 20;  // of a buffer
constexpr uint64_t LARGE = 16 << 20;
constexpr size_t MOST_LARGE = 2;  // buffers that may be larger

struct Buffer {
    uint64_t charged = 0;
    bool busy = false;
};
struct Buffers {
    std::mutex mutex;
    std::condition_variable given_back;
    Room<Buffer> all{std::max<size_t>(std::thread::hardware_concurrency(), 1)};
};
Buffers& buffers() {
    static Buffers* const only = new Buffers;  // work may go on while the process ends
    return *only;
}
}  // namespace

OpenblasBuffer::OpenblasBuffer(int64_t longest) {
    const uint64_t bytes =
        std::min(LEAST + EACH * static_cast<uint64_t>(std::clamp<int64_t>(longest, 0, 1 << 20)), MOST);
    auto& [mutex, given_back, all] = buffers();
    const size_t mine = bytes > LARGE ? std::min(MOST_LARGE, all.size()) : all.size();
    std::unique_lock lock(mutex);
    for (;; given_back.wait(lock)) {
        // The first that is free, as OpenBLAS has it.
        for (slot_ = 0; slot_ < mine && all[slot_].busy;) ++slot_;
        if (slot_ == mine) continue;
        Buffer& its = all[slot_];
        if (bytes <= its.charged) break;
        if (take_room(bytes - its.charged)) {
            its.charged = bytes;
            break;
        }
        if (std::ranges::none_of(all, &Buffer::busy)) throw std::bad_alloc();
    }
    all[slot_].busy = true;
}
OpenblasBuffer::~OpenblasBuffer() {
    Buffers& its = buffers();
    const std::lock_guard lock(its.mutex);
    its.all[slot_].busy = false;
    its.given_back.notify_all();
}

bool can_make_handle(std::span<const char* const> functions) {
    static auto* const context = libraries::driver_function<CUresult(CUcontext*)>("cuCtxGetCurrent");
    CUcontext current = nullptr;
    return on_simulated_device() && load_openblas(functions) && context &&
           context(&current) == CUDA_SUCCESS && current;
}

}  // namespace gpukernel::simgpu_libraries
