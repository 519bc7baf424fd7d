// Kernels as machine code: what the scheduler sees of the compiler.
//
// What it guarantees.  Compiled code computes, bit by bit, what the interpreter computes, in the
// interpreter's order, in the interpreter's registers.  At each operation it may hand the warp over, as if
// the interpreter had run it so far: it does so at barriers and calls, and whenever something is not as
// usual.  Faults are found and told by the interpreter's own handlers.  Writing the code takes time and
// memory in proportion to the kernel's operations, and bounds on both.
#pragma once

#include <atomic>
#include <chrono>
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
    uint32_t enter(Context& context, Warp& warp, uint32_t block) const {
        return call(context, warp, code_ + entries_[block]);
    }
    void begin_warps(Context& context) const;                   // those of a block, none of which has begun
    uint32_t enter_warps(Context& context, Warp& first) const;  // `first` and those behind it
    void settle(Context& context, Warp& warp) const;            // what is the same for a whole launch

  private:
    std::unique_ptr<MachineCode> image_;
    std::string refused_;
    void make(const Function& function, bool rows);
    uint32_t call(Context& context, Warp& warp, const char* place) const {
        using Enter = uint32_t (*)(Context*, Warp*, const char*);
        return reinterpret_cast<Enter>(code_ + enter_)(&context, &warp, place);
    }
    const size_t* entries_ = nullptr;
    size_t enter_ = 0;
    bool take_room(size_t bytes);
    void refuse(std::string why);
    char* code_ = nullptr;
    size_t bytes_ = 0;  // of the code
    size_t room_ = 0;   // of the process's room for all kernels, tables included
};

// Of one function: code for each shape of blocks that it was launched with.
struct Kernels {
    std::mutex mutex;
    std::unique_ptr<CompiledKernel> of[2];             // by whether a warp's lanes stand in a row
    std::atomic<const CompiledKernel*> ready[2] = {};  // the same, once it is there and is no refusal
    bool asked[2] = {};                                // of the thread that compiles in the background
    uint64_t launches = 0;
};

// Code that may come while a launch runs: the tier `auto`, by a thread in the background.
class Awaited {
  public:
    Awaited(const Function& function, bool rows);
    // One cluster has ended: the code, once it is there.  A launch that goes on for a while asks for it.
    const CompiledKernel* look();

  private:
    const Function& function_;
    Kernels& kernels_;
    const bool rows_;
    const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
    std::atomic<bool> asked_{false};
};

struct Code {
    const CompiledKernel* now = nullptr;  // none: the interpreter runs it
    std::unique_ptr<Awaited> later;       // none: nothing comes
};

// The code for a launch.  GPUKERNEL_SIMGPU_TIER_LOG=1 has a line on standard error say which and why, once
// for each kernel and shape; the kernel's row says it, too.
Code code_for(const Program& program, const Function& function, const Launch& launch);

// Compiles in the calling thread; nothing where that was done before.
void compile(const Function& function, bool rows);
// The same kernel could not be compiled for want of memory: it is asked for again.
void not_compiled(const Function& function, bool rows);
// Has a thread in the background do it; false: so many wait that this one must ask again.
bool compile_later(const Function& function, bool rows);
// Returns when the thread in the background has nothing to do with these functions any more.
void forget(const Program& program);

// Behind a warp's registers there is so much room for what compiled code keeps of it (none: nothing).
uint64_t bytes_of_lines(const CompiledKernel* kernel);
// Before a launch: a context for this block's warps.
void prepare(BlockState& block);
// Before each block of a launch: the context says which it is.
void start(BlockState& block);

// Runs the lanes of a warp for as long as nothing else is to be done; true: the warp's turn is over, false:
// the interpreter goes on.  Throws Fault.
bool run(Warp& warp);
// The same for all warps of a block, none of which has been started, and of blocks behind it along x, at most
// `count` in all.  What is left of the last one is as the scheduler would have it.
struct Ran {
    uint64_t blocks;
    bool ended;  // the last one, too
};
Ran run_blocks(BlockState& block, uint64_t count);

}  // namespace compiler
}  // namespace gpukernel::simgpu
