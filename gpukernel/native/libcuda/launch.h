// The shape of a launch, and the decoding of what a program launches with.
#pragma once

#include <cstddef>
#include <functional>

#include "codegen/cuda_driver.h"

#pragma GCC visibility push(hidden)

namespace gpukernel::libcuda {

struct LaunchShape {
    unsigned sides[6] = {};     // the grid's x, y and z in blocks, then the block's in threads
    unsigned shared_bytes = 0;  // dynamic shared memory of a block
    bool cooperative = false;
    unsigned cluster[3] = {};  // in blocks; zeros: the launch does not say
};

// Read into `shape` what one attribute says of it; others are hints.
void read_attribute(CUlaunchAttributeID id, const CUlaunchAttributeValue& value, LaunchShape& shape);
LaunchShape shape_of(const CUlaunchConfig& config);

// The parameters as one buffer (CU_LAUNCH_PARAM_BUFFER_POINTER); nullptr where `extra` names none.
struct ParameterBuffer {
    const void* data = nullptr;
    size_t bytes = 0;
};
ParameterBuffer buffer_of(void** extra);

// Find the block size that fills a multiprocessor best (cuOccupancyMaxPotentialBlockSize).
//
// Tries `most_threads` and, below it, each multiple of a warp.  `blocks_of` says how many blocks of so many
// threads fit a multiprocessor.  CUDA_ERROR_INVALID_VALUE where none fits.
CUresult best_block_size(int most_threads, int warp, int multiprocessors,
                         const std::function<CUresult(int threads, int& blocks)>& blocks_of, int& grid,
                         int& block);

}  // namespace gpukernel::libcuda

#pragma GCC visibility pop
