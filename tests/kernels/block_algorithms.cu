// CUB's block-wide algorithms: what libraries really do with shuffles, ballots and shared memory.
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

extern "C" __global__ void sort_block(const int* in, int* out) {
    using Sort = cub::BlockRadixSort<int, 128, 4>;
    __shared__ typename Sort::TempStorage shared;
    int keys[4];
    for (int k = 0; k < 4; ++k) keys[k] = in[blockIdx.x * 512 + threadIdx.x * 4 + k];
    Sort(shared).Sort(keys);
    for (int k = 0; k < 4; ++k) out[blockIdx.x * 512 + threadIdx.x * 4 + k] = keys[k];
}
extern "C" __global__ void reduce_and_scan(const double* in, double* sums, double* prefix) {
    using Reduce = cub::BlockReduce<double, 128>;
    using Scan = cub::BlockScan<double, 128>;
    __shared__ typename Reduce::TempStorage for_reduce;
    __shared__ typename Scan::TempStorage for_scan;
    int i = blockIdx.x * 128 + threadIdx.x;
    double v = in[i], before, total = Reduce(for_reduce).Sum(v);
    Scan(for_scan).ExclusiveSum(v, before);
    prefix[i] = before;
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}
