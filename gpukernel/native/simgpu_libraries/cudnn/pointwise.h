// Operations on single elements, by the numbers of cudnnPointwiseMode_t, and reductions.
#pragma once

#include <optional>

#include "simgpu_libraries/cudnn/tensor.h"

namespace gpukernel::simgpu_libraries::cudnn {

struct Pointwise {
    int mode = 0;
    double lower = 0, upper = 0, slope = 0;  // of a rectifier; `upper` is infinite where none is given
    double elu_alpha = 1, softplus_beta = 1, swish_beta = 1;
    int64_t axis = -1;  // whose numbers the mode INDEX gives

    static constexpr int IDENTITY = 21;
    static constexpr int INDEX = 501;  // gives each element's number along an axis, and reads nothing
    bool backward() const { return mode >= 200 && mode < 300; }
    int operands() const;  // 0: no such mode here
    // Of x, b and t; backward: of x and dy.
    double operator()(double x, double b, double t) const;
};

// A tensor on the device, or one number.
struct ElementOperand {
    Tensor tensor;
    std::optional<double> number;
    double alpha = 1;
};

// to = op(x, b, t), where operands spread over `to`.
int pointwise(const Context& context, const Pointwise& op, const ElementOperand (&operands)[3],
              const Tensor& to);

enum Reduction { R_ADD, R_MUL, R_MIN, R_MAX, R_AMAX, R_AVG, R_NORM1, R_NORM2, R_MUL_NO_ZEROS };
constexpr int64_t MOST_REDUCED = 1 << 25;  // elements into one, which nothing can pause
// to = alpha * the reduction of x over the extents that are 1 in `to`, or over neighbours where they divide
// x's,
// + beta * to.
int reduce(const Context& context, int operation, const Tensor& x, const Tensor& to, double alpha,
           double beta);

}  // namespace gpukernel::simgpu_libraries::cudnn
