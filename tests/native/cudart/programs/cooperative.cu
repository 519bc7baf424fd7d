// A cooperative launch: all blocks wait for each other.
#include <cooperative_groups.h>

#include "check.h"

namespace cg = cooperative_groups;

__global__ void sum(int* parts, int* total, int n) {
    const cg::grid_group grid = cg::this_grid();
    if (!threadIdx.x) parts[blockIdx.x] = blockIdx.x + 1;
    grid.sync();
    if (grid.thread_rank() == 0) {
        *total = 0;
        for (int i = 0; i < n; ++i) *total += parts[i];
    }
}

int main() {
    int n = 16, *parts, *total, read;
    OK(cudaMalloc(&parts, n * 4));
    OK(cudaMalloc(&total, 4));
    void* arguments[] = {&parts, &total, &n};
    OK(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(sum), n, 32, arguments));
    OK(cudaMemcpy(&read, total, 4, cudaMemcpyDeviceToHost));
    CHECK(read == 136);
    // Over a network it is the next wait that says so.
    cudaError_t error = cudaLaunchCooperativeKernel(reinterpret_cast<void*>(sum), 1 << 20, 32, arguments);
    if (!error) error = cudaDeviceSynchronize();
    CHECK(error == cudaErrorCooperativeLaunchTooLarge);
    std::puts("ok");
}
