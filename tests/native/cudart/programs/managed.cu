// Managed memory, and variables that the program and kernels share.
#include "check.h"

__managed__ int shared_value = 5;
__managed__ float table[3] = {1, 2, 3};

__global__ void add(int* to) {
    *to += shared_value;
    shared_value = 100;
    table[1] *= 2;
}

int main() {
    int* memory;
    OK(cudaMallocManaged(&memory, 4096));
    *memory = 1;
    CHECK(shared_value == 5 && table[2] == 3);
    shared_value = 7;
    add<<<1, 1>>>(memory);
    OK(cudaDeviceSynchronize());
    CHECK(*memory == 8 && shared_value == 100 && table[1] == 4 && table[0] == 1);
    shared_value = 1;
    add<<<1, 1>>>(memory);
    OK(cudaDeviceSynchronize());
    CHECK(*memory == 9 && table[1] == 8);
    cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, memory));
    CHECK(attributes.type == cudaMemoryTypeManaged);
    OK(cudaPointerGetAttributes(&attributes, &attributes));
    CHECK(attributes.type == cudaMemoryTypeUnregistered);
    std::puts("ok");
}
