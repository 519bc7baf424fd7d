// 256 bins: each warp counts in its own copy in shared memory, the copies are added up at the end.
extern "C" __global__ void histogram(const unsigned char* data, unsigned* bins, int n) {
    extern __shared__ unsigned copies[];
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
    for (int b = threadIdx.x; b < 256 * warps; b += blockDim.x) copies[b] = 0;
    __syncthreads();
    const uchar4* four = reinterpret_cast<const uchar4*>(data);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n / 4; i += gridDim.x * blockDim.x) {
        uchar4 v = four[i];
        atomicAdd(&copies[256 * warp + v.x], 1u);
        atomicAdd(&copies[256 * warp + v.y], 1u);
        atomicAdd(&copies[256 * warp + v.z], 1u);
        atomicAdd(&copies[256 * warp + v.w], 1u);
    }
    if (blockIdx.x == 0 && threadIdx.x < n % 4) atomicAdd(&copies[256 * warp + data[n - 1 - threadIdx.x]], 1u);
    __syncthreads();
    for (int b = threadIdx.x; b < 256; b += blockDim.x) {
        unsigned total = 0;
        for (int w = 0; w < warps; ++w) total += copies[256 * w + b];
        if (total) atomicAdd(&bins[b], total);
    }
}
