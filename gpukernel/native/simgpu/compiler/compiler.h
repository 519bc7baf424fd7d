// Kernels as machine code: what the scheduler sees of the compiler.
//
// What it guarantees.  Compiled code computes, bit by bit, what the interpreter computes, in the
// interpreter's order, in the interpreter's registers.  At each operation it may hand the warp over, as if
// the interpreter had run it so far: it does so at barriers and calls, and whenever something is not as
// usual.  Faults are found and told by the interpreter's own handlers.  Writing the code takes time and
// memory in proportion to the kernel's operations, and bounds on both.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>

#include "simgpu/exec/machine.h"

namespace gpukernel::simgpu {

struct Launch;
struct BlockState;

namespace compiler {

struct MachineCode;
struct Context;

// A kernel's code in memory that can be executed and not written.
class CompiledKernel {
  public:
    CompiledKernel(const Function& function, bool rows);
    ~CompiledKernel();
    CompiledKernel(const CompiledKernel&) = delete;
    const std::string& refused() const { return refused_; }  // why there is no code; empty: there is
    const MachineCode& image() const { return *image_; }
    uint32_t enter(Context& context, Warp& warp, uint32_t block) const;

  private:
    std::unique_ptr<MachineCode> image_;
    std::string refused_;
    void make(const Function& function, bool rows);
    bool take_room(size_t bytes);
    void refuse(std::string why);
    char* code_ = nullptr;
    size_t bytes_ = 0;  // of the code
    size_t room_ = 0;   // of the process's room for all kernels, tables included
};

// Of one function: code for each shape of blocks that it was launched with.
struct Kernels {
    std::mutex mutex;
    std::unique_ptr<CompiledKernel> of[2];  // by whether a warp's lanes stand in a row
    uint64_t launches = 0;
};

// The code for a launch, or nullptr: the interpreter runs it.  GPUKERNEL_SIMGPU_TIER_LOG=1 has a line on
// standard error say which and why, once for each kernel and shape.
const CompiledKernel* code_for(const Program& program, const Function& function, const Launch& launch);

// Before a launch: a context for this block's warps.
void prepare(BlockState& block);

// Runs the lanes of a warp for as long as nothing else is to be done; true: the warp's turn is over, false:
// the interpreter goes on.  Throws Fault.
bool run(Warp& warp);

}  // namespace compiler
}  // namespace gpukernel::simgpu
