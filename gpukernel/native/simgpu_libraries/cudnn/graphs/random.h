// Random numbers in an operation graph, as dropout wants them: the same for the same seed and offset.
#pragma once

#include <optional>

#include "simgpu_libraries/cudnn/tensor.h"

namespace gpukernel::simgpu_libraries::cudnn {

// An integer that is known, or lies on the device as the only element of a tensor.
struct WholeNumber {
    std::optional<int64_t> number;
    Tensor tensor;
    int64_t value(const Access& access, const char* what) const;
};

struct Random {
    enum Distribution { BERNOULLI, UNIFORM, NORMAL };  // cudnnRngDistribution_t
    int distribution = BERNOULLI;
    double probability = 0;          // of 1
    double least = 0, most = 1;      // of UNIFORM
    double mean = 0, deviation = 1;  // of NORMAL
    int64_t seed = 0;                // where it is no tensor
    bool seed_is_tensor = false;
};

// SUCCESS, or BAD_PARAM where the numbers describe no distribution.
int check(const Random& random);
// Fills `to`.  An element's number depends upon seed, offset and its place among all elements alone, so that
// a graph that goes backward draws what the one forward has drawn.
int draw(const Context& context, const Random& random, const WholeNumber& seed, const WholeNumber& offset,
         const Tensor& to);

}  // namespace gpukernel::simgpu_libraries::cudnn
