// C = A B for a batch of matrices, blockIdx.z the batch, through tiles in shared memory; half adds up in float.
#include <cuda_fp16.h>
#define T 16

template <typename Element, typename Sum, typename Out = Element>
__device__ void multiply(const Element* a, const Element* b, Out* c, int m, int n, int k) {
    __shared__ Element left[T][T], right[T][T];
    a += (long long)blockIdx.z * m * k, b += (long long)blockIdx.z * k * n, c += (long long)blockIdx.z * m * n;
    int row = blockIdx.y * T + threadIdx.y, column = blockIdx.x * T + threadIdx.x;
    Sum sum = 0;
    for (int base = 0; base < k; base += T) {
        int la = base + threadIdx.x, lb = base + threadIdx.y;
        left[threadIdx.y][threadIdx.x] = row < m && la < k ? a[row * k + la] : Element(0);
        right[threadIdx.y][threadIdx.x] = lb < k && column < n ? b[lb * n + column] : Element(0);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < T; ++i) sum += Sum(left[threadIdx.y][i]) * Sum(right[i][threadIdx.x]);
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = Out(sum);
}

#define GEMM(name, Element, Sum)                                                                                    \
    extern "C" __global__ void name(const Element* a, const Element* b, Element* c, int m, int n, int k) { \
        multiply<Element, Sum>(a, b, c, m, n, k);                                                                   \
    }
GEMM(gemm_float, float, float)
GEMM(gemm_double, double, double)
GEMM(gemm_half, __half, float)
extern "C" __global__ void gemm_half_to_float(const __half* a, const __half* b, float* c, int m, int n, int k) {
    multiply<__half, float>(a, b, c, m, n, k);
}

// Two halves an instruction: c = alpha a + b, element by element.
extern "C" __global__ void axpy_half2(const __half2* a, const __half2* b, __half2* c, float alpha, int pairs) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < pairs) c[i] = __hfma2(__float2half2_rn(alpha), a[i], b[i]);
}

// Half precision summed in single, tiles of 64 x 64 by 256 threads with 16 sums each; sizes are multiples of 64.
extern "C" __global__ void gemm_half_blocked(const __half* a, const __half* b, float* c, int m, int n, int k) {
    __shared__ float left[16][64], right[16][64];
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    a += blockIdx.y * 64 * k, b += blockIdx.x * 64;
    float sum[4][4] = {};
    for (int base = 0; base < k; base += 16) {
        for (int i = threadIdx.x; i < 1024; i += 256) {
            left[i % 16][i / 16] = a[i / 16 * k + base + i % 16];
            right[i / 64][i % 64] = b[(base + i / 64) * n + i % 64];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; ++i)
#pragma unroll
            for (int r = 0; r < 4; ++r)
#pragma unroll
                for (int q = 0; q < 4; ++q) sum[r][q] = fmaf(left[i][y + 16 * r], right[i][x + 16 * q], sum[r][q]);
        __syncthreads();
    }
    for (int r = 0; r < 4; ++r)
        for (int q = 0; q < 4; ++q) c[(blockIdx.y * 64 + y + 16 * r) * n + blockIdx.x * 64 + x + 16 * q] = sum[r][q];
}
