// A program of two devices: what it sets on the one stays there when the other is reset.
#include "check.h"

__device__ int kept = 5;
__global__ void add(int* to, int value) { *to = kept + value; }
__global__ void much(int* to) {
    extern __shared__ int room[];
    room[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) *to = room[blockDim.x - 1] + kept;
}

int added(int device, int value) {
    int *there, here = 0;
    OK(cudaSetDevice(device));
    OK(cudaMalloc(&there, sizeof *there));
    add<<<1, 1>>>(there, value);
    OK(cudaMemcpy(&here, there, sizeof here, cudaMemcpyDeviceToHost));
    OK(cudaFree(there));
    return here;
}

int main() {
    for (int device = 0; device < 2; ++device) {
        const int value = 10 + device;
        OK(cudaSetDevice(device));
        OK(cudaMemcpyToSymbol(kept, &value, sizeof value));
    }
    for (int device = 0; device < 2; ++device) CHECK(added(device, 100) == 110 + device);

    OK(cudaSetDevice(1));
    OK(cudaFuncSetAttribute(much, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000));
    int *there, here = 0;
    OK(cudaMalloc(&there, sizeof *there));
    much<<<1, 64, 60000>>>(there);
    OK(cudaMemcpy(&here, there, sizeof here, cudaMemcpyDeviceToHost));
    CHECK(here == 63 + 11);

    OK(cudaSetDevice(0));
    OK(cudaDeviceReset());
    CHECK(added(1, 100) == 111);
    CHECK(added(0, 100) == 105);
    std::puts("ok");
}
