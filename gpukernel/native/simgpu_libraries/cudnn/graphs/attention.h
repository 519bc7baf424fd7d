// Operations of a graph that are made of others: attention, softmax, masks of a diagonal band.
#pragma once

#include "libraries/cudnn/backend.h"

namespace gpukernel::simgpu_libraries::cudnn {

// The operations of a graph, with products of matrices, reductions and operations upon elements in place of
// those above.  Throws Refused.
std::vector<libraries::cudnn::Shared> in_parts(const libraries::cudnn::Node& graph);

}  // namespace gpukernel::simgpu_libraries::cudnn
