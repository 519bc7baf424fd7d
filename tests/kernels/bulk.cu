// Hopper's bulk copies without tensor maps, as libcu++ offers them: by cuda::memcpy_async, and by cuda::ptx.
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/ptx>
namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;
using barrier = cuda::barrier<cuda::thread_scope_block>;

// Rows come in one bulk copy each, are turned around, and go back in another.
extern "C" __global__ void reverse_rows(const int* in, int* out, int columns) {
    extern __shared__ __align__(16) int row[];
    __shared__ __align__(16) int turned[256];
    __shared__ barrier come;
    auto block = cg::this_thread_block();
    if (threadIdx.x == 0) init(&come, blockDim.x);
    block.sync();
    cuda::memcpy_async(block, row, in + blockIdx.x * columns, cuda::aligned_size_t<16>(4 * columns), come);
    come.arrive_and_wait();
    for (int i = threadIdx.x; i < columns; i += blockDim.x) turned[i] = row[columns - 1 - i];
    ptx::fence_proxy_async(ptx::space_shared);
    block.sync();
    if (threadIdx.x == 0) {
        ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, out + blockIdx.x * columns, turned, 4 * columns);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
    }
}

// One block of a cluster fetches for all of them, and each adds what it has onto the sums in one bulk reduction.
extern "C" __global__ void __cluster_dims__(4, 1, 1) spread(const float* in, float* sums, int* seen) {
    __shared__ __align__(128) float tile[128];
    __shared__ __align__(8) uint64_t come;
    auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(&come, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &come, sizeof tile);
    }
    cluster.sync();
    if (cluster.block_rank() == 1 && threadIdx.x == 0)  // to all but the third
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
                     ::"r"((unsigned)__cvta_generic_to_shared(tile)), "l"(in + blockIdx.x / 4 * 128), "r"((unsigned)sizeof tile),
                     "r"((unsigned)__cvta_generic_to_shared(&come)), "h"((unsigned short)0b1011) : "memory");
    auto wait = [&] {
        while (!ptx::mbarrier_try_wait_parity(&come, 0)) {
        }
    };
    if (cluster.block_rank() != 2) wait();
    if (cluster.block_rank() == 3 && threadIdx.x == 0)  // which has it from its neighbour
        ptx::cp_async_bulk(ptx::space_cluster, ptx::space_shared, cluster.map_shared_rank(tile, 2), tile, sizeof tile,
                           cluster.map_shared_rank(&come, 2));
    if (cluster.block_rank() == 2) wait();
    cluster.sync();  // the neighbour's is still read until here
    tile[threadIdx.x] *= cluster.block_rank() + 1;
    ptx::fence_proxy_async(ptx::space_shared);
    cluster.sync();
    if (threadIdx.x == 0) {
        ptx::cp_reduce_async_bulk(ptx::space_global, ptx::space_shared, ptx::op_add, sums, tile, sizeof tile);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
        atomicAdd(seen, 1);
    }
}
