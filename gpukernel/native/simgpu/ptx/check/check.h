// What an instruction may look like: every modifier and every operand against the tables of forms.
#pragma once

#include "simgpu/ptx/syntax.h"

namespace gpukernel::simgpu::ptx {

// Throws SyntaxError where no form of the instruction has these modifiers and operands: what a text newer
// than the tables says may be right, and only the function that says it cannot run.
void check(const Instruction& in, const FunctionTree& tree);

}  // namespace gpukernel::simgpu::ptx
