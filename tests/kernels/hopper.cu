// C = A B as Hopper's libraries do it: one warpgroup brings tiles by tensor maps, through two stages of shared
// memory with a swizzle; another one multiplies them by wgmma and puts its tile back by a tensor map.
#include <cuda_fp16.h>

struct alignas(64) Map {
    char opaque[128];
};
constexpr int kTile = 64, kStages = 2, kBytes = kTile * kTile * 2;  // halves: rows of 128 bytes

__device__ unsigned at(const void* shared) { return static_cast<unsigned>(__cvta_generic_to_shared(shared)); }
__device__ void wait(const unsigned long long* barrier, unsigned parity) {
    asm volatile(
        "{ .reg .pred p;\nWAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra WAIT; }" ::"r"(
            at(barrier)),
        "r"(parity)
        : "memory");
}
__device__ void bring(void* to, const Map& map, int x, int y, unsigned long long* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
            "r"(at(to)),
        "l"(&map), "r"(x), "r"(y), "r"(at(barrier))
        : "memory");
}
// Rows of 128 bytes, swizzled: eight of them are 1024 bytes.
__device__ unsigned long long descriptor(const void* shared, int bytes) {
    return ((at(shared) + bytes) & 0x3ffff) >> 4 | 1ull << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}
// A lies with its depth side by side, B with its columns.
__device__ void multiply(float (&d)[32], unsigned long long a, unsigned long long b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b));
}

extern "C" __global__ void __launch_bounds__(256) gemm(const __grid_constant__ Map a, const __grid_constant__ Map b,
                                                       const __grid_constant__ Map c, int depth) {
    extern __shared__ __align__(1024) char tiles[];
    __shared__ unsigned long long full[kStages], empty[kStages];
    const int row = blockIdx.y * kTile, column = blockIdx.x * kTile, steps = (depth + kTile - 1) / kTile;
    if (threadIdx.x == 0)
        for (int s = 0; s < kStages; ++s)
            for (unsigned long long* barrier : {full + s, empty + s})
                asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(barrier)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
    if (threadIdx.x >= 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x != 128) return;
        for (int n = 0; n < steps; ++n) {
            const int s = n % kStages;
            if (n >= kStages) wait(empty + s, (n / kStages - 1) & 1);
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(full + s)), "n"(2 * kBytes)
                         : "memory");
            bring(tiles + 2 * s * kBytes, a, n * kTile, row, full + s);
            bring(tiles + (2 * s + 1) * kBytes, b, column, n * kTile, full + s);
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    float d[32] = {};
    for (int n = 0; n < steps; ++n) {
        const int s = n % kStages;
        const char *x = tiles + 2 * s * kBytes, *y = x + kBytes;
        wait(full + s, n / kStages & 1);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int k = 0; k < kTile; k += 16) multiply(d, descriptor(x, 2 * k), descriptor(y, 128 * k));
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
        // One thread says it for all four warps.
        if (threadIdx.x == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(empty + s)) : "memory");
    }
    __half* out = reinterpret_cast<__half*>(tiles + 2 * kStages * kBytes);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = 0; i < 32; ++i)
        out[(16 * warp + lane / 4 + (i / 2 % 2) * 8) * kTile + i / 4 * 8 + lane % 4 * 2 + i % 2] = __float2half(d[i]);
    asm volatile("fence.proxy.async.shared::cta;\nbar.sync 1, 128;" ::: "memory");
    if (threadIdx.x == 0)
        asm volatile(
            "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];\n"
            "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::"l"(&c),
            "r"(column), "r"(row), "r"(at(out))
            : "memory");
}
