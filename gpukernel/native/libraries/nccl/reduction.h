// What NCCL's collectives compute: elements of its types, reduced over the ranks, in memory of the host.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace gpukernel::libraries::nccl {

constexpr size_t BYTES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};  // of ncclInt8 … ncclFloat8e5m2
constexpr int TYPES = sizeof BYTES / sizeof *BYTES, OPERATIONS = 5;

// The sum, product, maximum, minimum or average (ncclSum … ncclAvg) of `count` elements of each rank, in the
// order of the ranks.  Floats are computed in double precision and rounded once; integers wrap around.
std::vector<char> reduced(std::span<const std::vector<char>> ranks, size_t count, int type, int operation);

}  // namespace gpukernel::libraries::nccl
