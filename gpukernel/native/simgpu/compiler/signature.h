// What an operation reads and writes: the sizes of its operands, found by the name of its handler.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "simgpu/exec/machine.h"

namespace gpukernel::simgpu::compiler {

// A register of the decoded program: a slot of a warp's registers, and bytes of one lane; 0: a predicate.
struct Access {
    uint32_t operand;  // as in Op: odd operands are constants
    uint32_t bytes;
};

struct Signature {
    std::string key;  // the handler's name, without what the decoder found out about constants
    std::vector<Access> reads, writes;
    bool keeps = false;  // lanes may keep what was there although they run: a write that is a read, too
};

// nullopt: the compiler does not know the operation.  Control operations have the key of their handler, or
// none.
std::optional<Signature> signature_of(const Function& function, const Op& op);

}  // namespace gpukernel::simgpu::compiler
