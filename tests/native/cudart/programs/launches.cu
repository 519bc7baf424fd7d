// Launches of templates, variables of the device, attributes, occupancy, and what errors leave behind.
#include <vector>

#include "check.h"

__constant__ float factors[4];
__device__ int offset = 3;
__device__ double far[1000];

template <class T>
__global__ void combine(const T* a, const T* b, T* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i] * static_cast<T>(factors[1]) + offset;
}
__global__ void dynamic(int* out) {
    extern __shared__ int room[];
    room[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = room[blockDim.x - 1 - threadIdx.x];
}

template <class T>
void combined() {
    const int n = 1000;
    std::vector<T> a(n, 1), b(n, 2), out(n);
    T *da, *db, *to;
    for (T** each : {&da, &db, &to}) OK(cudaMalloc(each, n * sizeof(T)));
    OK(cudaMemcpy(da, a.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(db, b.data(), n * sizeof(T), cudaMemcpyDefault));
    combine<<<(n + 127) / 128, 128>>>(da, db, to, n);
    OK(cudaGetLastError());
    OK(cudaMemcpy(out.data(), to, n * sizeof(T), cudaMemcpyDeviceToHost));
    for (T value : out) CHECK(value == 1 + 2 * 10 + 5);
    for (T* each : {da, db, to}) OK(cudaFree(each));
}

int main() {
    FAILS(cudaGetLastError(), cudaSuccess);
    const float values[4] = {0, 10, 0, 0};
    const int five = 5;
    OK(cudaMemcpyToSymbol(factors, values, sizeof values));
    OK(cudaMemcpyToSymbol(offset, &five, sizeof five));
    combined<float>();
    combined<double>();
    combined<long long>();
    float back[2];
    OK(cudaMemcpyFromSymbol(back, factors, 8, 4));
    CHECK(back[0] == 10 && back[1] == 0);
    void* address;
    size_t size;
    OK(cudaGetSymbolAddress(&address, far));
    OK(cudaGetSymbolSize(&size, far));
    CHECK(size == 8000);
    FAILS(cudaMemcpyToSymbol(factors, values, 16, 4), cudaErrorInvalidValue);
    FAILS(cudaGetSymbolSize(&size, reinterpret_cast<const void*>(&five)), cudaErrorInvalidSymbol);

    // Errors: of a launch, by peeking, by reading; what is not ready is none.
    cudaGetLastError();
    combine<float><<<1, 2048>>>(nullptr, nullptr, nullptr, 0);
    FAILS(cudaPeekAtLastError(), cudaErrorInvalidConfiguration);
    FAILS(cudaGetLastError(), cudaErrorInvalidConfiguration);
    FAILS(cudaGetLastError(), cudaSuccess);
    combine<float><<<0, 32>>>(nullptr, nullptr, nullptr, 0);
    FAILS(cudaGetLastError(), cudaErrorInvalidConfiguration);
    void* nothing = &nothing;
    OK(cudaMalloc(&nothing, 0));
    CHECK(!nothing);
    FAILS(cudaMalloc(&nothing, size_t{1} << 60), cudaErrorMemoryAllocation);
    FAILS(cudaGetLastError(), cudaErrorMemoryAllocation);
    FAILS(cudaMemcpy(&size, far, 8, static_cast<cudaMemcpyKind>(9)), cudaErrorInvalidMemcpyDirection);
    FAILS(cudaSetDevice(99), cudaErrorInvalidDevice);
    cudaGetLastError();

    // Dynamic shared memory beyond 48 KiB has to be asked for.
    int* out;
    OK(cudaMalloc(&out, 64 * 4));
    void* arguments[] = {&out};
    FAILS(cudaLaunchKernel(reinterpret_cast<const void*>(dynamic), 1, 64, arguments, 60 << 10, nullptr), cudaErrorInvalidValue);
    OK(cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 60 << 10));
    dynamic<<<1, 64, 60 << 10>>>(out);
    int read[64];
    OK(cudaMemcpy(read, out, sizeof read, cudaMemcpyDeviceToHost));
    CHECK(read[0] == 63 && read[63] == 0);
    cudaFuncAttributes attributes;
    OK(cudaFuncGetAttributes(&attributes, dynamic));
    CHECK(attributes.maxThreadsPerBlock == 1024 && attributes.maxDynamicSharedSizeBytes == 60 << 10);
    int blocks, threads;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, dynamic, 64, 0));
    CHECK(blocks > 0);
    OK(cudaOccupancyMaxPotentialBlockSize(&blocks, &threads, combine<float>));
    CHECK(threads >= 256 && blocks >= 108);
    cudaLaunchConfig_t config{};
    cudaLaunchAttribute cluster[1];
    cluster[0].id = cudaLaunchAttributeCooperative;
    cluster[0].val.cooperative = 1;
    config.gridDim = 1, config.blockDim = 64, config.dynamicSmemBytes = 256, config.attrs = cluster, config.numAttrs = 1;
    OK(cudaLaunchKernelEx(&config, dynamic, out));
    OK(cudaDeviceSynchronize());

    // After a reset, variables are as in the image.
    OK(cudaDeviceReset());
    int again;
    OK(cudaMemcpyFromSymbol(&again, offset, 4));
    CHECK(again == 3);
    cudaDeviceProp properties;
    OK(cudaGetDeviceProperties(&properties, 0));
    CHECK(properties.major == 8 && properties.multiProcessorCount == 108 && properties.warpSize == 32);
    CHECK(properties.totalGlobalMem > 1 << 20 && properties.maxGridSize[0] == 2147483647);
    std::puts("ok");
}
