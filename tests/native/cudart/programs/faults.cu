// An illegal access stays the answer of every call, and is not cleared by reading it.
#include "check.h"

__global__ void wild(int* at) { *at = 1; }

int main() {
    int* memory;
    OK(cudaMalloc(&memory, 4));
    wild<<<1, 1>>>(reinterpret_cast<int*>(4096));
    FAILS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    FAILS(cudaGetLastError(), cudaErrorIllegalAddress);
    FAILS(cudaGetLastError(), cudaErrorIllegalAddress);
    FAILS(cudaMemcpy(&memory, memory, 4, cudaMemcpyDeviceToHost), cudaErrorIllegalAddress);
    FAILS(cudaStreamQuery(nullptr), cudaErrorIllegalAddress);
    std::puts("ok");
}
