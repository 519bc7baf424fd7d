// Clusters of blocks (compute capability 9.0): each other's shared memory, their barrier, and mbarriers of another block.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

// Where each block stands: what the group says, and what it is told by the special registers.
extern "C" __global__ void places(int* out) {
    auto cluster = cg::this_cluster();
    dim3 within = cluster.block_index(), shape = cluster.dim_blocks();
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    if (threadIdx.x) return;
    int id[3], count[3], given;
    asm("mov.u32 %0, %%clusterid.x; mov.u32 %1, %%clusterid.y; mov.u32 %2, %%clusterid.z;"
        : "=r"(id[0]), "=r"(id[1]), "=r"(id[2]));
    asm("mov.u32 %0, %%nclusterid.x; mov.u32 %1, %%nclusterid.y; mov.u32 %2, %%nclusterid.z;"
        : "=r"(count[0]), "=r"(count[1]), "=r"(count[2]));
    asm("{ .reg .pred p; mov.pred p, %%is_explicit_cluster; selp.b32 %0, 1, 0, p; }" : "=r"(given));
    const int told[] = {(int)within.x, (int)within.y, (int)within.z, (int)cluster.block_rank(),
                        (int)shape.x,  (int)shape.y,  (int)shape.z,  (int)cluster.num_blocks(),
                        id[0],         id[1],         id[2],         count[0],
                        count[1],      count[2],      given,         (int)cluster.num_threads()};
    for (int i = 0; i < 16; ++i) out[16 * block + i] = told[i];
}

// The bins lie spread over the cluster's blocks, as in the programming guide.
extern "C" __global__ void histogram(const int* in, int n, int* bins, int bins_per_block) {
    extern __shared__ int part[];
    auto cluster = cg::this_cluster();
    for (int i = threadIdx.x; i < bins_per_block; i += blockDim.x) part[i] = 0;
    cluster.sync();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        int bin = in[i];
        int* there = cluster.map_shared_rank(part, bin / bins_per_block);
        atomicAdd(there + bin % bins_per_block, 1);
    }
    cluster.sync();
    for (int i = threadIdx.x; i < bins_per_block; i += blockDim.x)
        atomicAdd(bins + cluster.block_rank() * bins_per_block + i, part[i]);
}

// Three-point sums whose neighbours may lie in the next block; arriving and waiting apart, round after round.
extern "C" __global__ void __cluster_dims__(4, 1, 1) smooth(const int* in, int* out, int rounds) {
    __shared__ int now[2][64];
    auto cluster = cg::this_cluster();
    int rank = cluster.block_rank(), i = threadIdx.x, size = cluster.num_blocks();
    now[0][i] = in[blockIdx.x * 64 + i];
    for (int round = 0; round < rounds; ++round) {
        auto token = cluster.barrier_arrive();
        int* mine = now[round & 1];
        int* before = cluster.map_shared_rank(mine, (rank + size - 1) % size);
        int* after = cluster.map_shared_rank(mine, (rank + 1) % size);
        cluster.barrier_wait(std::move(token));
        now[~round & 1][i] = mine[i] + (i ? mine[i - 1] : before[63]) + (i < 63 ? mine[i + 1] : after[0]);
    }
    cluster.sync();
    out[blockIdx.x * 64 + i] = now[rounds & 1][i];
}

// Each block sends its numbers to the next, whose barrier counts the bytes.  Nobody else waits there.
extern "C" __global__ void __cluster_dims__(2, 1, 1) pass_on(const int* in, int* out) {
    __shared__ alignas(16) int box[4 * 32];
    __shared__ int sum;
    __shared__ alignas(8) unsigned long long full, counted;
    auto cluster = cg::this_cluster();
    unsigned here = (unsigned)__cvta_generic_to_shared(&full), other = 1 - cluster.block_rank(), to, bell, total, count;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(here) : "memory");
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 33;" ::"r"((unsigned)__cvta_generic_to_shared(&counted)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        sum = 0;
    }
    cluster.sync();
    if (threadIdx.x == 0) {
        asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], 512; }" ::"r"(here) : "memory");
        asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], 128; }"
                     ::"r"((unsigned)__cvta_generic_to_shared(&counted)) : "memory");
    }
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"((unsigned)__cvta_generic_to_shared(box + 4 * threadIdx.x)), "r"(other));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(bell) : "r"(here), "r"(other));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(total) : "r"((unsigned)__cvta_generic_to_shared(&sum)), "r"(other));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(count) : "r"((unsigned)__cvta_generic_to_shared(&counted)), "r"(other));
    const int* from = in + 4 * (blockIdx.x * 32 + threadIdx.x);
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(to), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]), "r"(bell) : "memory");
    asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];"
                 ::"r"(total), "r"(from[0]), "r"(count) : "memory");
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(count) : "memory");
    for (unsigned barrier : {here, (unsigned)__cvta_generic_to_shared(&counted)})
        for (int done = 0; !done;)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0; selp.b32 %0, 1, 0, p; }"
                         : "=r"(done) : "r"(barrier) : "memory");
    for (int i = 0; i < 4; ++i) out[4 * (blockIdx.x * 32 + threadIdx.x) + i] = box[4 * threadIdx.x + i];
    if (threadIdx.x == 0) out[gridDim.x * 128 + blockIdx.x] = sum;
    cluster.sync();
}

// All clusters of the grid meet as well.
extern "C" __global__ void __cluster_dims__(2, 1, 1) both_barriers(int* out) {
    __shared__ int value;
    auto cluster = cg::this_cluster();
    auto grid = cg::this_grid();
    if (threadIdx.x == 0) value = blockIdx.x + 1;
    cluster.sync();
    int other = *cluster.map_shared_rank(&value, 1 - cluster.block_rank());
    if (threadIdx.x == 0) atomicAdd(out, value * other);
    grid.sync();
    if (threadIdx.x == 0) out[1 + blockIdx.x] = *(volatile int*)out;
    cluster.sync();
}
