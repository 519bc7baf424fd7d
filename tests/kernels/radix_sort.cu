// Least significant digit first, four bits a pass, stable.  Three kernels a pass: count the digits of each block,
// scan the counts (digit by digit, block by block), put every key where it belongs.
#define RADIX 16

extern "C" __global__ void count(const unsigned* keys, unsigned* counts, int n, int shift) {
    __shared__ unsigned own[RADIX];
    if (threadIdx.x < RADIX) own[threadIdx.x] = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&own[keys[i] >> shift & (RADIX - 1)], 1u);
    __syncthreads();
    if (threadIdx.x < RADIX) counts[threadIdx.x * gridDim.x + blockIdx.x] = own[threadIdx.x];
}

extern "C" __global__ void exclusive_scan(unsigned* counts, int n) {  // one block of 256 threads
    __shared__ unsigned sums[256];
    unsigned carry = 0;
    for (int base = 0; base < n; base += 256) {
        int i = base + threadIdx.x;
        unsigned own = i < n ? counts[i] : 0;
        sums[threadIdx.x] = own;
        __syncthreads();
        for (int step = 1; step < 256; step *= 2) {
            unsigned other = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
            __syncthreads();
            sums[threadIdx.x] += other;
            __syncthreads();
        }
        if (i < n) counts[i] = carry + sums[threadIdx.x] - own;
        carry += sums[255];
        __syncthreads();
    }
}

extern "C" __global__ void scatter(const unsigned* keys, const unsigned* values, unsigned* sorted_keys,
                                   unsigned* sorted_values, const unsigned* counts, int n, int shift) {
    __shared__ unsigned before[RADIX][8];  // keys of a digit in the warps before, eight warps a block
    int i = blockIdx.x * blockDim.x + threadIdx.x, warp = threadIdx.x / 32;
    unsigned lanes_below = (1u << (threadIdx.x & 31)) - 1;
    unsigned digit = i < n ? keys[i] >> shift & (RADIX - 1) : RADIX;
    unsigned same = 0;
    for (unsigned d = 0; d < RADIX; ++d) {
        unsigned mask = __ballot_sync(0xffffffffu, digit == d);
        if (digit == d) same = mask;
        if ((threadIdx.x & 31) == 0) before[d][warp] = __popc(mask);
    }
    __syncthreads();
    if (threadIdx.x < RADIX) {
        unsigned sum = 0;
        for (int w = 0; w < 8; ++w) {
            unsigned own = before[threadIdx.x][w];
            before[threadIdx.x][w] = sum;
            sum += own;
        }
    }
    __syncthreads();
    if (i >= n) return;
    unsigned at = counts[digit * gridDim.x + blockIdx.x] + before[digit][warp] + __popc(same & lanes_below);
    sorted_keys[at] = keys[i];
    sorted_values[at] = values[i];
}
