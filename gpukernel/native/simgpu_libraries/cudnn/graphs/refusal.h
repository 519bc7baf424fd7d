// How what an operation graph asks for is refused while it is read.
#pragma once

#include <algorithm>
#include <string>

#include "libraries/cudnn/backend.h"

namespace gpukernel::simgpu_libraries::cudnn {

struct Refused {
    int status;
    std::string what;  // is not there; empty where the graph makes no sense
};
[[noreturn]] inline void refuse(const std::string& what) {
    throw Refused{libraries::cudnn::NOT_SUPPORTED, what};
}
[[noreturn]] inline void wrong() { throw Refused{libraries::cudnn::BAD_PARAM, {}}; }

// That a node has no other attributes than these.
inline void only(const libraries::cudnn::Node& node, std::initializer_list<int> known) {
    for (const auto& [name, attribute] : node.attributes)
        if (std::find(known.begin(), known.end(), name) == known.end())
            refuse("the attribute " + std::to_string(name) + " of a descriptor of kind " +
                   std::to_string(node.kind));
}

}  // namespace gpukernel::simgpu_libraries::cudnn
