// Tensors of torch's CPU build in managed memory, which kernels reach.
#include <c10/core/CPUAllocator.h>
#include <dlfcn.h>

#include <new>

namespace {
using Allocate = int(unsigned long long*, size_t, unsigned);
using Free = int(unsigned long long);
Allocate* allocate_managed;
Free* free_managed;

void give_back(void* data) {
    if (data) free_managed(reinterpret_cast<unsigned long long>(data));
}

struct Managed final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        unsigned long long address = 0;
        if (bytes && allocate_managed(&address, bytes, 1 /* CU_MEM_ATTACH_GLOBAL */)) throw std::bad_alloc();
        void* data = reinterpret_cast<void*>(address);
        return {data, data, give_back, c10::Device(c10::DeviceType::CPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return give_back; }
    void copy_data(void* to, const void* from, size_t bytes) const override {
        default_copy_data(to, from, bytes);
    }
} managed;
}  // namespace

extern "C" int use_managed_memory() {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 1;
    allocate_managed = reinterpret_cast<Allocate*>(dlsym(driver, "cuMemAllocManaged"));
    free_managed = reinterpret_cast<Free*>(dlsym(driver, "cuMemFree_v2"));
    c10::SetCPUAllocator(&managed, 255);
    return 0;
}
