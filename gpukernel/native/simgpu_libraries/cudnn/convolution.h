// Convolutions of any layout and type, in one to three dimensions: forward, to the data and to the filter.
#pragma once

#include <vector>

#include "simgpu_libraries/cudnn/pointwise.h"

namespace gpukernel::simgpu_libraries::cudnn {

constexpr int MOST_SPATIAL = 3;

struct Convolution {
    enum Direction { FORWARD, TO_DATA, TO_FILTER };
    Direction direction = FORWARD;
    int spatial = 2;
    int64_t before[MOST_SPATIAL] = {}, after[MOST_SPATIAL] = {};  // the padding
    int64_t stride[MOST_SPATIAL] = {1, 1, 1}, dilation[MOST_SPATIAL] = {1, 1, 1};
    bool flipped = false;  // a convolution, not a cross-correlation
    Tensor x, w, y;        // or their gradients
    double alpha = 1, beta = 0;
    // What becomes of each element of the result before it is stored, unless the filter's gradient is made:
    // register 0 has the convolution's, and each stage's goes to a register and perhaps to a tensor.
    struct Input {
        int reg = -1;  // or an operand
        ElementOperand operand;
    };
    struct Stage {
        Pointwise op;
        std::vector<Input> inputs;
        int reg = 0;
        bool stored = false;
        Tensor to;
    };
    std::vector<Stage> stages;
    bool stored = true;  // the convolution's own result is

    int64_t groups() const { return x.extent[1] / w.extent[1]; }
    bool wide() const { return x.type == DOUBLE; }
};

// SUCCESS where there is such a convolution; `why` says what is not there, where that is it.
int check(const Convolution& convolution, const char*& why);
int convolve(const Context& context, const Convolution& convolution);
constexpr int MOST_REGISTERS = 65;

}  // namespace gpukernel::simgpu_libraries::cudnn
