// Nanoseconds a call, of the same calls through the libcuda.so.1 that this process finds by name (direct
// mode's) and in the driver behind it, whose path GPUKERNEL_DRIVER names.  Run by benchmarks/direct.py.
//
// The launch is of a kernel that does not exist, so that the driver answers at once: what is compared is what
// comes before it.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

using Clock = std::chrono::steady_clock;

struct Library {
    void* handle;
    template <class Function>
    Function* get(const char* name) const {
        void* symbol = ::dlsym(handle, name);
        if (!symbol) std::fprintf(stderr, "no %s\n", name), std::exit(1);
        return reinterpret_cast<Function*>(symbol);
    }
};

template <class Call>
double once(int count, Call call) {
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) call();
    return std::chrono::duration<double, std::nano>(Clock::now() - start).count() / count;
}

// Interleaved, so that the noise of the machine falls on both; the median of each.
template <class Ours, class Theirs>
void compare(const char* name, int count, Ours ours, Theirs theirs, const char* end) {
    std::vector<double> a, b;
    for (int i = 0; i < 41; ++i) a.push_back(once(count, ours)), b.push_back(once(count, theirs));
    std::sort(a.begin(), a.end()), std::sort(b.begin(), b.end());
    std::printf("\"%s\":[%f,%f]%s", name, a[a.size() / 2], b[b.size() / 2], end);
}

int main() {
    const Library shim{::dlopen("libcuda.so.1", RTLD_NOW)};
    const Library driver{::dlopen(std::getenv("GPUKERNEL_DRIVER"), RTLD_NOW | RTLD_NOLOAD)};
    if (!shim.handle || !driver.handle) return 1;
    void* context = nullptr;
    if (shim.get<int(unsigned)>("cuInit")(0) ||
        shim.get<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, 0) ||
        shim.get<int(void*)>("cuCtxSetCurrent")(context))
        return 1;
    std::printf("{");

    using Version = int(int*);
    Version *ours = shim.get<Version>("cuDriverGetVersion"),
            *theirs = driver.get<Version>("cuDriverGetVersion");
    int value;
    compare("passed on", 100000, [&] { ours(&value); }, [&] { theirs(&value); }, ",");

    using Launch = int(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                       void**, void**);
    Launch *we = shim.get<Launch>("cuLaunchKernel"), *they = driver.get<Launch>("cuLaunchKernel");
    const auto launch = [&](Launch* function) {
        return [=] { function(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); };
    };
    compare("launch, alone", 20000, launch(we), launch(they), ",");

    using Allocate = int(uint64_t*, size_t);
    using Free = int(uint64_t);
    const auto pair = [&](const Library& library) {
        auto* allocate = library.get<Allocate>("cuMemAlloc_v2");
        auto* free = library.get<Free>("cuMemFree_v2");
        return [=] {
            uint64_t address = 0;
            allocate(&address, 512);
            free(address);
        };
    };
    compare("allocate and free 512 bytes", 5000, pair(shim), pair(driver), "}\n");
}
