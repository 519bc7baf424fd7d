// Softmax of rows, a warp a row, maximum and sum in one pass.
#define LEAST __int_as_float(0xff800000)  // minus infinity

extern "C" __global__ void softmax(const float* in, float* out, int rows, int columns) {
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (row >= rows) return;
    const float* line = in + (long long)row * columns;
    float most = LEAST, sum = 0;
    for (int c = lane; c < columns; c += 32) {
        float v = line[c], higher = fmaxf(most, v);
        sum = sum * __expf(most - higher) + __expf(v - higher);
        most = higher;
    }
    for (int step = 16; step; step /= 2) {
        float their_most = __shfl_xor_sync(0xffffffffu, most, step), their_sum = __shfl_xor_sync(0xffffffffu, sum, step);
        float higher = fmaxf(most, their_most);
        sum = (most == LEAST ? 0 : sum * __expf(most - higher)) +
              (their_most == LEAST ? 0 : their_sum * __expf(their_most - higher));
        most = higher;
    }
    for (int c = lane; c < columns; c += 32) out[(long long)row * columns + c] = __fdividef(__expf(line[c] - most), sum);
}
