// Products of matrices in an operation graph: C = A B over the last two extents, in batches over the others.
#pragma once

#include <optional>

#include "simgpu_libraries/cudnn/tensor.h"

namespace gpukernel::simgpu_libraries::cudnn {

struct Matmul {
    Tensor a, b, c;
    // How much of M, N and K a batch has: integers on the device, which spread over the batches.
    std::optional<Tensor> lengths[3];
    double padding = 0;  // what stands in C beyond M and N

    int64_t m() const { return c.extent[c.rank - 2]; }
    int64_t n() const { return c.extent[c.rank - 1]; }
    int64_t k() const { return a.extent[a.rank - 1]; }
    bool wide() const { return a.type == DOUBLE; }
};

// SUCCESS where there is such a product; `why` says what is not there, where that is it.
int check(const Matmul& product, const char*& why);
int multiply(const Context& context, const Matmul& product);

}  // namespace gpukernel::simgpu_libraries::cudnn
