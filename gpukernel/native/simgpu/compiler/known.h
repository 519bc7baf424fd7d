// What the compiler takes, for who counts it.
#pragma once

#include <set>
#include <string>

#include "simgpu/exec/machine.h"

namespace gpukernel::simgpu::compiler {

// The keys of all operations that it knows, and the names of those kinds of control that are code.
std::set<std::string> known_operations();
const char* control_name(Control control);  // empty: nothing of its own

}  // namespace gpukernel::simgpu::compiler
