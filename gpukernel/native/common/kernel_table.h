// What the simulated GPU says of its kernels: which tier runs each, how often and for how long, and, while
// somebody wants a profile, what their warps do.
//
// The simulated GPU's libcuda exports `gpukernel_kernels` and `gpukernel_profile`; NVIDIA's has none of these
// names.  Both tables have bounds; what found no room is counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpukernel {

constexpr size_t MOST_KERNELS = 512, MOST_PROFILES = 256, MOST_LINES = 24, LONGEST_KERNEL_NAME = 512;

// One kernel since its process began.  Kernels of one name and the same operations are one, in whatever
// module they come.
struct KernelUse {
    std::string_view name, reason;  // why it is not compiled, or not yet; empty: it is
    bool compiled;                  // so runs its next launch
    uint64_t launches, compiled_launches, failed;
    uint64_t nanoseconds, compile_nanoseconds;  // without the time in which the device was another slice's
};
// Calls `row` for each kernel; returns the launches of kernels that found no room.
using ReadKernels = uint64_t (*)(void (*row)(void* to, const KernelUse& one), void* to);
constexpr char READ_KERNELS[] = "gpukernel_kernels";

// What is counted, each a number of 64 bits.  A request is one instruction that one warp executes.
//   instructions        PTX instructions that warps executed
//   lanes, executed     threads that came to these; of them, those whose predicate let them execute
//   branches, divergent branches with a predicate; those that some threads of a warp took and others did not
//   barriers            arrivals of warps, or of parts of them, at bar and barrier
//   load_…, store_…     global memory: bytes asked for by all threads, distinct bytes among them (of each
//                       request), and sectors of 32 bytes that these lie in
//   shared_…            shared memory: passes that a request takes where each of 32 banks gives one word of
//                       4 bytes a pass, and what it would take if its words were spread evenly
//   local_…             local memory
//   constant_requests   constant memory; parameters are not counted
//   atomic_…            atomics and reductions: threads, and turns where threads of a warp with one address
//                       take turns
//   other_memory        instructions that access memory and are not counted above: textures and surfaces,
//                       matrices (ldmatrix, wmma), bulk and tensor copies, mbarrier objects
#define GPUKERNEL_KERNEL_COUNTS(X) \
    X(instructions)                \
    X(lanes)                       \
    X(executed)                    \
    X(branches)                    \
    X(divergent)                   \
    X(barriers)                    \
    X(load_requests)               \
    X(load_bytes)                  \
    X(load_distinct)               \
    X(load_sectors)                \
    X(store_requests)              \
    X(store_bytes)                 \
    X(store_distinct)              \
    X(store_sectors)               \
    X(shared_requests)             \
    X(shared_bytes)                \
    X(shared_passes)               \
    X(shared_least)                \
    X(local_requests)              \
    X(local_bytes) X(constant_requests) X(atomic_requests) X(atomic_threads) X(atomic_turns) X(other_memory)
struct KernelCounts {
#define GPUKERNEL_COUNT(name) uint64_t name = 0;
    GPUKERNEL_KERNEL_COUNTS(GPUKERNEL_COUNT)
#undef GPUKERNEL_COUNT
    void add(const KernelCounts& other) {
#define GPUKERNEL_COUNT(name) name += other.name;
        GPUKERNEL_KERNEL_COUNTS(GPUKERNEL_COUNT)
#undef GPUKERNEL_COUNT
    }
};

struct LineCount {  // of the source where the PTX names it, else of the PTX, and `file` is empty
    std::string_view file;
    uint32_t line;
    uint64_t instructions;
};

// The launches of one kernel with blocks of one shape, within one range of the program's (NVTX).
struct KernelProfile {
    std::string_view name, range, reason;  // as in KernelUse
    bool compiled;                         // so it runs where nobody counts
    uint32_t block[3];
    uint32_t registers, shared_memory_bytes;  // of a thread, an estimate; of a block
    uint32_t resident_blocks, most_warps;     // of a multiprocessor: such blocks, and warps at most
    std::string_view limit;  // what bounds the blocks: registers, shared memory, threads, blocks
    uint64_t launches, failed, blocks, nanoseconds;
    KernelCounts counts;
    const LineCount* lines;  // those with the most instructions
    size_t line_count;
};
enum class Profiling : uint8_t { read, begin, end };  // `begin` forgets what was counted before
// Begins, ends, or neither, and calls `row` for what was counted; returns the launches that found no room.
using ProfileKernels = uint64_t (*)(Profiling what, void (*row)(void* to, const KernelProfile& one),
                                    void* to);
constexpr char PROFILE_KERNELS[] = "gpukernel_profile";

// The range in which the calling thread's next launches are; empty: none.
constexpr size_t MOST_RANGE = 256;  // bytes; what is beyond is cut off
using SetRange = void (*)(const char* text, size_t bytes);
constexpr char SET_RANGE[] = "gpukernel_set_range";

}  // namespace gpukernel
