// Inclusive scan of any length in one pass: every block scans its own part, publishes the sum and looks back over the
// blocks before it until one of them knows its whole prefix.
// state: 0 nothing yet, 1 the block's own sum, 2 the sum of everything up to and including the block.
template <typename T>
__device__ T scan_warp(T value) {
    for (int step = 1; step < 32; step *= 2) {
        T other = __shfl_up_sync(0xffffffffu, value, step);
        if ((threadIdx.x & 31) >= step) value += other;
    }
    return value;
}

template <typename T>
__device__ void scan(const T* in, T* out, int n, unsigned* next, volatile int* state, volatile T* own,
                     volatile T* whole) {
    __shared__ T warps[32];
    __shared__ T before;
    __shared__ int part;
    if (threadIdx.x == 0) part = atomicAdd(next, 1u);  // in the order in which blocks start, so nobody waits for ever
    __syncthreads();
    int i = part * blockDim.x + threadIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    T value = scan_warp(i < n ? in[i] : T(0));
    if (lane == 31) warps[warp] = value;
    __syncthreads();
    if (warp == 0) warps[lane] = scan_warp(lane < blockDim.x / 32 ? warps[lane] : T(0));
    __syncthreads();
    if (warp) value += warps[warp - 1];
    if (threadIdx.x == blockDim.x - 1) {
        own[part] = value;
        __threadfence();
        state[part] = 1;
        T sum = 0;
        for (int p = part - 1; p >= 0; --p) {
            int s;
            while ((s = state[p]) == 0) {
            }
            __threadfence();
            if (s == 2) {
                sum += whole[p];
                break;
            }
            sum += own[p];
        }
        whole[part] = sum + value;
        __threadfence();
        state[part] = 2;
        before = sum;
    }
    __syncthreads();
    if (i < n) out[i] = value + before;
}

#define SCAN(T, name)                                                                                              \
    extern "C" __global__ void name(const T* in, T* out, int n, unsigned* next, int* state, T* own, T* whole) { \
        scan<T>(in, out, n, next, state, own, whole);                                                              \
    }
SCAN(int, scan_int)
SCAN(long long, scan_long)
SCAN(double, scan_double)
