// Streams, events, callbacks, pinned memory, the pool, and per-thread default streams where it is compiled so.
#include <atomic>
#include <thread>

#include "check.h"

__global__ void add(int* to, int value) { atomicAdd(to, value); }

std::atomic<int> called{0};

int main() {
    cudaStream_t first, second;
    OK(cudaStreamCreate(&first));
    OK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    unsigned flags;
    OK(cudaStreamGetFlags(second, &flags));
    CHECK(flags == cudaStreamNonBlocking);
    int *device, *pinned;
    OK(cudaMalloc(&device, 4));
    OK(cudaMallocHost(&pinned, 4));
    OK(cudaMemsetAsync(device, 0, 4, first));
    add<<<1, 32, 0, first>>>(device, 1);
    cudaEvent_t done, timed;
    OK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    OK(cudaEventCreate(&timed));
    OK(cudaEventRecord(done, first));
    OK(cudaStreamWaitEvent(second, done));
    add<<<1, 32, 0, second>>>(device, 2);
    OK(cudaMemcpyAsync(pinned, device, 4, cudaMemcpyDeviceToHost, second));
    OK(cudaLaunchHostFunc(second, [](void* data) { called += *static_cast<int*>(data); }, pinned));
    OK(cudaStreamAddCallback(second, [](cudaStream_t, cudaError_t error, void*) { called += error == cudaSuccess; }, nullptr, 0));
    OK(cudaStreamSynchronize(second));
    CHECK(*pinned == 96 && called == 97);
    OK(cudaStreamQuery(second));
    OK(cudaEventQuery(done));
    float time;
    FAILS(cudaEventElapsedTime(&time, done, timed), cudaErrorInvalidResourceHandle);
    cudaGetLastError();
    FAILS(cudaStreamDestroy(nullptr), cudaErrorInvalidResourceHandle);
    cudaGetLastError();

    // A thread of its own has the current device, and errors of its own.
    cudaSetDevice(77);
    std::thread([] {
        int device = -1;
        OK(cudaPeekAtLastError());
        OK(cudaGetDevice(&device));
        CHECK(device == 0);
        int* memory;
        OK(cudaMalloc(&memory, 4));
        OK(cudaMemset(memory, 1, 4));
        int read = 0;
        OK(cudaMemcpy(&read, memory, 4, cudaMemcpyDeviceToHost));
        CHECK(read == 0x01010101);
        OK(cudaFree(memory));
    }).join();
    FAILS(cudaGetLastError(), cudaErrorInvalidDevice);

    int* from_pool;
    OK(cudaMallocAsync(&from_pool, 1 << 20, first));
    OK(cudaMemsetAsync(from_pool, 0, 4, first));
    add<<<1, 64, 0, first>>>(from_pool, 3);
    OK(cudaMemcpyAsync(pinned, from_pool, 4, cudaMemcpyDeviceToHost, first));
    OK(cudaFreeAsync(from_pool, first));
    OK(cudaStreamSynchronize(first));
    CHECK(*pinned == 192);
    cudaMemPool_t pool;
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    unsigned long long threshold = 1 << 20, kept = 0;
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept));
    CHECK(kept == threshold);

    // Memory of the program that kernels reach.
    int *mapped, *alias;
    OK(cudaHostAlloc(&mapped, 4, cudaHostAllocMapped));
    *mapped = 5;
    OK(cudaHostGetDevicePointer(&alias, mapped, 0));
    add<<<1, 1>>>(alias, 6);
    OK(cudaDeviceSynchronize());
    CHECK(*mapped == 11);
    cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, mapped));
    CHECK(attributes.type == cudaMemoryTypeHost && attributes.devicePointer == alias);
    OK(cudaFreeHost(mapped));
    OK(cudaFreeHost(pinned));
    size_t free_bytes, all;
    OK(cudaMemGetInfo(&free_bytes, &all));
    CHECK(free_bytes && free_bytes <= all);
    // The driver's own function, in the form of this runtime's version.
    void* function = nullptr;
    cudaDriverEntryPointQueryResult status;
    OK(cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &function, 12000, cudaEnableDefault, &status));
    CHECK(function && status == cudaDriverEntryPointSuccess);
    void* context = nullptr;
    CHECK(!reinterpret_cast<int (*)(void**)>(function)(&context) && context);
    OK(cudaStreamDestroy(first));
    OK(cudaStreamDestroy(second));
    std::puts("ok");
}
