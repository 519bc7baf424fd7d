// Kernels that go wrong, each in one way.  `data` has 16 numbers.
extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);
#define assert(what) ((what) ? (void)0 : __assertfail(#what, __FILE__, __LINE__, __PRETTY_FUNCTION__, 1))

__device__ __noinline__ void put(int* data, int at) {
    data[at] = at;  // line 6
}

extern "C" __global__ void beyond_the_end(int* data) { put(data, 32 * blockIdx.x + threadIdx.x - 22); }
extern "C" __global__ void before_the_start(int* data) {
    if (threadIdx.x == 5) data[0] = data[-2];  // line 11
}
extern "C" __global__ void null_pointer(int* data) {
    if (data[0] == 0) atomicAdd((unsigned long long*)nullptr + threadIdx.x, 1ull);  // line 14
}
extern "C" __global__ void beyond_shared_memory(int* data) {
    __shared__ int tile[8];
    tile[threadIdx.x + data[0]] = 1;  // line 18
    __syncthreads();
    data[0] = tile[data[1]];
}
extern "C" __global__ void misaligned(int* data) {
    if (threadIdx.x >= 3) data[1] = *(volatile int*)((char*)data + threadIdx.x);  // line 23
}
__global__ void with_arguments(int* data, float limit) {
    assert(threadIdx.x < limit + 30);  // line 26
    data[threadIdx.x & 15] = 1;
}
extern "C" __global__ void trap(int* data) {
    if (threadIdx.x == 31) asm("trap;");  // line 30
}
extern "C" __global__ void lacking(int* data) {
    int r;
    asm volatile("{ .reg .b32 %d; bogus.sync.b32 %0, 3; }" : "=r"(r));
    data[0] = r;
}
