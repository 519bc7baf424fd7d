// An operation graph as steps on the simulated device.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "libraries/cudnn/backend.h"
#include "simgpu_libraries/cudnn/convolution.h"
#include "simgpu_libraries/cudnn/graphs/matmul.h"
#include "simgpu_libraries/cudnn/graphs/random.h"
#include "simgpu_libraries/cudnn/pointwise.h"

namespace gpukernel::simgpu_libraries::cudnn {

// A tensor of the graph: where it lies is known when the graph is executed.  What no one outside sees
// (`is_virtual`) lies in the workspace, in float or double.
struct Slot {
    Tensor tensor;
    int64_t id = 0;
    bool is_virtual = false, by_value = false;
    std::optional<double> constant;
    int64_t whole = 0;    // `constant` without its fraction, all its digits
    uint64_t offset = 0;  // in the workspace
};

struct Step {
    std::variant<Convolution, Pointwise, Reduction, Matmul, Random> what;
    std::vector<size_t> inputs;  // slots, in the order of the operation's
    size_t output = 0;
    double alpha[2] = {1, 1};
    bool view = false;  // the input's memory is seen with the output's extents and strides
};

struct Program {
    std::vector<Slot> slots;
    std::vector<Step> steps;
    std::vector<Step> fused;  // what is done to each element of the only step's result, a convolution
    uint64_t workspace = 0;
};

// The graph's steps in order, or a status and, where something is not there, its name.
int parse(const Node& graph, Program& program, std::string& what);
int run(const Context& context, const Program& program, const Pack& pack);

}  // namespace gpukernel::simgpu_libraries::cudnn
