// Cooperative groups: reductions over tiles of a warp, over lanes that happen to be together, over the whole grid.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;

template <int Size>
__device__ void tile_sums(const int* in, int* out) {
    auto tile = cg::tiled_partition<Size>(cg::this_thread_block());
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int sum = cg::reduce(tile, in[i], cg::plus<int>());
    if (tile.thread_rank() == 0) out[i / Size] = sum;
}
extern "C" __global__ void tiles_of_32(const int* in, int* out) { tile_sums<32>(in, out); }
extern "C" __global__ void tiles_of_8(const int* in, int* out) { tile_sums<8>(in, out); }

extern "C" __global__ void tile_scan(const int* in, int* out) {
    auto tile = cg::tiled_partition<16>(cg::this_thread_block());
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = cg::inclusive_scan(tile, in[i]);
}

// Lanes with odd numbers find one another; one of them adds for all.
extern "C" __global__ void count_odd(const int* in, int* count, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && (in[i] & 1)) {
        cg::coalesced_group together = cg::coalesced_threads();
        if (together.thread_rank() == 0) atomicAdd(count, (int)together.size());
    }
}

// All blocks meet twice: sums of blocks, then everybody divides by the whole.
extern "C" __global__ void normalise(const double* in, double* out, double* sums, int n) {
    cg::grid_group grid = cg::this_grid();
    __shared__ double part[32];
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    double sum = 0;
    for (int i = grid.thread_rank(); i < n; i += grid.size()) sum += in[i];
    sum = cg::reduce(warp, sum, cg::plus<double>());
    if (warp.thread_rank() == 0) part[threadIdx.x / 32] = sum;
    block.sync();
    if (threadIdx.x == 0) {
        double whole = 0;
        for (int w = 0; w < blockDim.x / 32; ++w) whole += part[w];
        sums[blockIdx.x] = whole;
    }
    grid.sync();
    double whole = 0;
    for (int b = 0; b < gridDim.x; ++b) whole += sums[b];
    for (int i = grid.thread_rank(); i < n; i += grid.size()) out[i] = in[i] / whole;
}
