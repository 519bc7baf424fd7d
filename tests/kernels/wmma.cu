// C = A B with tensor cores: by nvcuda::wmma, each warp one tile; and by mma.sync with what feeds it since Ampere.
#include <mma.h>
using namespace nvcuda;

// A is m x k, B is k x n, both by rows or by columns; C by rows.  Two warps in a block, the tiles one after the other.
template <typename L> struct by_rows { static constexpr bool value = false; };
template <> struct by_rows<wmma::row_major> { static constexpr bool value = true; };

template <int M, int N, int K, typename Element, typename Sum, typename Layout, typename Memory>
__device__ void tile_product(const Memory* a, const Memory* b, Sum* c, int m, int n, int k) {
    const int tile = blockIdx.x * 2 + threadIdx.x / 32, across = n / N;
    if (tile >= m / M * across) return;
    const int row = tile / across * M, column = tile % across * N;
    wmma::fragment<wmma::matrix_a, M, N, K, Element, Layout> left;
    wmma::fragment<wmma::matrix_b, M, N, K, Element, Layout> right;
    wmma::fragment<wmma::accumulator, M, N, K, Sum> sum;
    wmma::fill_fragment(sum, Sum(0));
    for (int i = 0; i < k; i += K) {
        const bool r = by_rows<Layout>::value;
        wmma::load_matrix_sync(left, a + (r ? row * k + i : i * m + row), r ? k : m);
        wmma::load_matrix_sync(right, b + (r ? i * n + column : column * k + i), r ? n : k);
        wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(c + row * n + column, sum, n, wmma::mem_row_major);
}

#define PRODUCT(name, M, N, K, Element, Sum, Layout, Memory)                                                    \
    extern "C" __global__ void name(const Memory* a, const Memory* b, Sum* c, int m, int n, int k) {            \
        tile_product<M, N, K, Element, Sum, wmma::Layout, Memory>(a, b, c, m, n, k);                            \
    }
PRODUCT(half_rows, 16, 16, 16, __half, float, row_major, __half)
PRODUCT(half_columns, 16, 16, 16, __half, float, col_major, __half)
PRODUCT(half_high, 32, 8, 16, __half, float, col_major, __half)
PRODUCT(half_wide, 8, 32, 16, __half, float, row_major, __half)
PRODUCT(half_sums, 16, 16, 16, __half, __half, row_major, __half)

// Tiles of 64 x 64 by four warps, through shared memory with padded rows; alpha C and no less than 0 is stored.
extern "C" __global__ void half_staged(const __half* a, const __half* b, float* c, int m, int n, int k, float alpha) {
    constexpr int T = 64, K = 32, PAD = 8;
    __shared__ __align__(32) __half left[T][K + PAD], right[K][T + PAD];
    const int warp = threadIdx.x / 32, row = blockIdx.y * T, column = blockIdx.x * T;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[4];
    for (auto& s : sum) wmma::fill_fragment(s, 0.0f);
    for (int base = 0; base < k; base += K) {
        for (int i = threadIdx.x; i < T * K; i += blockDim.x) {
            left[i / K][i % K] = a[(row + i / K) * k + base + i % K];
            right[i / T][i % T] = b[(base + i / T) * n + column + i % T];
        }
        __syncthreads();
        for (int i = 0; i < K; i += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> x;
            wmma::load_matrix_sync(x, &left[16 * warp][i], K + PAD);
            for (int j = 0; j < 4; ++j) {
                wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> y;
                wmma::load_matrix_sync(y, &right[i][16 * j], T + PAD);
                wmma::mma_sync(sum[j], x, y, sum[j]);
            }
        }
        __syncthreads();
    }
    for (int j = 0; j < 4; ++j) {
        for (int i = 0; i < sum[j].num_elements; ++i) sum[j].x[i] = fmaxf(alpha * sum[j].x[i], 0.0f);
        wmma::store_matrix_sync(c + (row + 16 * warp) * n + column + 16 * j, sum[j], n, wmma::mem_row_major);
    }
}

#if __CUDA_ARCH__ >= 800
PRODUCT(brain_rows, 16, 16, 16, __nv_bfloat16, float, row_major, __nv_bfloat16)
PRODUCT(brain_high, 32, 8, 16, __nv_bfloat16, float, row_major, __nv_bfloat16)
PRODUCT(brain_wide, 8, 32, 16, __nv_bfloat16, float, col_major, __nv_bfloat16)
PRODUCT(signed_bytes, 16, 16, 16, signed char, int, row_major, signed char)
PRODUCT(signed_columns, 32, 8, 16, signed char, int, col_major, signed char)
PRODUCT(unsigned_bytes, 8, 32, 16, unsigned char, int, row_major, unsigned char)
PRODUCT(tf32_rows, 16, 16, 8, wmma::precision::tf32, float, row_major, float)
PRODUCT(tf32_columns, 16, 16, 8, wmma::precision::tf32, float, col_major, float)
PRODUCT(double_rows, 8, 8, 4, double, double, row_major, double)
PRODUCT(double_columns, 8, 8, 4, double, double, col_major, double)

__device__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
__device__ void copy_16(void* to, const void* from, bool all) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(all ? 16 : 0));
}

// Tiles of 32 x 32 by four warps, of which each has 16 x 16; two stages of copies are under way.  m and n need not be
// multiples of the tile: what is outside is copied as zeros.
extern "C" __global__ void half_pipelined(const __half* a, const __half* b, float* c, int m, int n, int k) {
    constexpr int T = 32, K = 32, PAD = 8;
    __shared__ __align__(16) __half left[2][T][K + PAD], right[2][K][T + PAD];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.y * T, column = blockIdx.x * T;
    const int high = warp / 2 * 16, across = warp % 2 * 16;
    auto fetch = [&](int stage, int base) {  // 128 threads, 8 halves each
        const int r = threadIdx.x / 4, q = threadIdx.x % 4 * 8;
        copy_16(&left[stage][r][q], a + (long long)min(row + r, m - 1) * k + base + q, row + r < m);
        copy_16(&right[stage][r][q], b + (long long)(base + r) * n + min(column + q, n - 8), column + q < n);
        asm volatile("cp.async.commit_group;");
    };
    float sum[2][4] = {};
    fetch(0, 0);
    for (int base = 0; base < k; base += K) {
        const int stage = base / K % 2;
        if (base + K < k) {
            fetch(stage ^ 1, base + K);
            asm volatile("cp.async.wait_group 1;");
        } else {
            asm volatile("cp.async.wait_all;");
        }
        __syncthreads();
        for (int i = 0; i < K; i += 16) {
            unsigned x[4], y[4];
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                         : "r"(shared_address(&left[stage][high + lane % 16][i + lane / 16 * 8])));
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3])
                         : "r"(shared_address(&right[stage][i + lane % 16][across + lane / 16 * 8])));
            for (int j = 0; j < 2; ++j)
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                             : "+f"(sum[j][0]), "+f"(sum[j][1]), "+f"(sum[j][2]), "+f"(sum[j][3])
                             : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[2 * j]), "r"(y[2 * j + 1]));
        }
        __syncthreads();
    }
    for (int j = 0; j < 2; ++j)
        for (int i = 0; i < 4; ++i) {
            const int r = row + high + lane / 4 + i / 2 * 8, q = column + across + 8 * j + lane % 4 * 2 + i % 2;
            if (r < m && q < n) c[(long long)r * n + q] = sum[j][i];
        }
}
#endif
