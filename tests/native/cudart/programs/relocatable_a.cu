// Relocatable device code: a kernel here calls a function of another file, through a template and a pointer, too.
#include "check.h"

extern __device__ int of(int);
extern __device__ int counter;
extern __constant__ int step;

__global__ void fill(int* to, int n) {
    if (threadIdx.x < n) to[threadIdx.x] = of(threadIdx.x) + counter + step;
}

void set_step(int value);

int main() {
    int *to, read[10];
    OK(cudaMalloc(&to, sizeof read));
    set_step(4);
    fill<<<1, 32>>>(to, 10);
    OK(cudaMemcpy(read, to, sizeof read, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 10; ++i) CHECK(read[i] == 2 * i + 30 + 4);
    std::puts("ok");
}
