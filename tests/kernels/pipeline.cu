// Ampere's asynchronous copies: a double-buffered sum of rows, and a barrier object that two halves of a block meet at.
#include <cuda_pipeline.h>
#include <cuda/barrier>

extern "C" __global__ void row_sums(const float4* in, float* out, int rows, int quads) {
    __shared__ float4 stage[2][64];
    float sum = 0;
    int row = blockIdx.x;
    auto fetch = [&](int step) {
        int q = step * 64 + threadIdx.x;
        // What lies beyond the row is zeros: nothing is read there.
        size_t beyond = q < quads ? 0 : sizeof(float4);
        __pipeline_memcpy_async(&stage[step & 1][threadIdx.x], &in[row * quads + (q < quads ? q : 0)], sizeof(float4), beyond);
        __pipeline_commit();
    };
    int steps = (quads + 63) / 64;
    fetch(0);
    for (int s = 0; s < steps; ++s) {
        if (s + 1 < steps) fetch(s + 1);
        __pipeline_wait_prior(s + 1 < steps ? 1 : 0);
        __syncthreads();
        float4 v = stage[s & 1][threadIdx.x];
        sum += v.x + v.y + v.z + v.w;
        __syncthreads();
    }
    atomicAdd(&out[row], sum);
}

extern "C" __global__ void produce_and_consume(const int* in, int* out, int rounds) {
    using barrier = cuda::barrier<cuda::thread_scope_block>;
    __shared__ barrier full, empty;
    __shared__ int box[64];
    if (threadIdx.x == 0) {
        init(&full, blockDim.x);
        init(&empty, blockDim.x);
    }
    __syncthreads();
    int me = threadIdx.x % 64, total = 0;
    bool producer = threadIdx.x < 64;
    for (int r = 0; r < rounds; ++r) {
        if (producer) {
            box[me] = in[r * 64 + me];
            (void)full.arrive();
            empty.arrive_and_wait();
        } else {
            full.arrive_and_wait();
            total += box[63 - me];
            (void)empty.arrive();
        }
    }
    if (!producer) out[me] = total;
}
