// A compiled kernel, and what its code finds in memory while it runs.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "simgpu/compiler/flow.h"

namespace gpukernel::simgpu::compiler {

constexpr uint32_t kEnds = ~0u;       // instead of an operation: at none, for the warp has ended
constexpr int32_t kBudget = 1 << 18;  // operations between two looks at what else happens

// Whether a warp that comes to the loop of generate/abreast.cpp waits there for others.
enum class Abreast : uint32_t {
    off,      // no
    gathers,  // it is the first to
    waits,    // others do
    goes_on,  // those that have waited run what is behind it, one after the other
};

// What compiled code finds through r15.  Behind it lie, where `Layout` says, the lanes that wait at each
// block, the allocations that each access has found, constants of the compiler's own, and the lines that a
// launch computes once; a warp's own lines lie behind its registers.
struct alignas(64) Context {
    int32_t budget = 0;      // operations until the code asks what else happens
    uint32_t mask = 0;       // the lanes that run, when the code is entered and left
    uint32_t exited = 0;     // lanes that have ended since it was entered
    uint32_t operation = 0;  // where it was left
    const char* params = nullptr;
    uint32_t special[kNctaidZ + 1] = {};  // of tid the first lane's
    uint32_t dynamic_base = 0;
    uint64_t first = 0;  // for code that wants a vector's first lane
    // Of the warps that are run one after the other: a block's first and last, the one at which the code was
    // left, and how many more blocks along x come after this one.
    Warp *front = nullptr, *back = nullptr, *at = nullptr;
    int32_t more_blocks = 0;
    // The turn in which they are (generate/turns.cpp): where its code begins, the block of code that this is,
    // the operation at which the first warp's part of it has ended, and whether another one may follow.
    uint32_t turn_block = 0, turn_ends = 0, turns = 0;
    const char* turn = nullptr;
    // Warps that wait for a loop that they run side by side (generate/abreast.cpp), or go on behind it: from
    // which one on, the one behind the last of them, the block of code where they are, and where the next
    // warp of the turn begins; what a launch has once found to differ between its warps is not tried again.
    Warp *waiting_from = nullptr, *waiting_to = nullptr;
    const char* turn_again = nullptr;
    uint32_t waits_at = 0, differs = 0;
    Abreast abreast = Abreast::off;
    // Operands and results of operations that are done lane after lane.
    alignas(64) uint64_t lanes[5][kLanes] = {};
};

struct Site {                // an allocation that an access of global memory has found
    uint64_t begin, places;  // and how many addresses there are of which all that it wants lies there
    uint64_t row = kNoRow;   // where the first of several accesses has found a warp's lanes side by side
    static constexpr uint64_t kNoRow = 0, kAllApart = 1;  // instead; the latter: not even eight of them
};

struct Wanted {     // by a site
    uint32_t span;  // bytes from the address on that is looked at
    int also = -1;  // a site that is to learn the same allocation
};

// Of addresses in shared memory: how many are looked after, and bytes of what is known of each.
constexpr uint32_t kPlaceStates = 32, kPlaceBytes = 9 * 64;
// Bits of a state that hold for the address as it is now; none in fresh memory.
constexpr int32_t kPlaceIsKnown = 1, kLoadsAtOnce = 2, kStoresAtOnce = 4, kPlaceIsKnownNow = 7;

struct Layout {
    uint32_t waiting = 0, sites = 0, literals = 0, settled = 0, bytes = 0;
    uint32_t lines = 0, bytes_of_lines = 0;  // with a warp's registers
    uint32_t places = 0;                     // there, too (generate/places.cpp); 0: none
    uint32_t frame = 0;                      // of vectors that are no registers (avx2/avx2.h)
};

// The reasons for which the code is left.
enum class Left : uint32_t {
    ended,    // no lane is left
    over,     // the budget is used up, in front of Context::operation
    handed,   // the interpreter goes on at Context::operation
    faulted,  // a handler found a fault
    met,      // at a barrier of the whole block, with the lines still behind the warp's registers
    between,  // the budget is used up, and no lane of the warp at hand has begun its part of the turn
    parted,   // no lane of the warp is left, and those before it wait at a barrier
};

struct MachineCode {
    bool narrow = false;   // for AVX2 instead of AVX-512
    bool unknown = false;  // it has an instruction that AVX2's back end does not know, and cannot run
    Flow flow;
    Layout layout;
    std::vector<uint8_t> code;  // until it lies where it can be executed
    size_t code_size = 0;
    std::vector<size_t> entries;  // of each block, where the interpreter may hand a warp over
    size_t settle = 0;            // what is done once for a launch
    size_t enter = 0;             // the function that goes to an entry
    size_t warps = 0;             // the entry for all warps of some blocks, none of which has begun
    bool meets = false;           // it has a barrier of the whole block
    std::vector<Wanted> wanted;   // by each site
    std::vector<std::vector<uint32_t>> entry_lines;  // of each block: the lines that are alive there
    std::vector<uint64_t> literals;
    uint32_t native = 0, called = 0;  // operations with code of their own, and those that call a handler
    std::set<std::string> handlers;   // those
    int abreast = 1;                  // warps that run one of its loops side by side

    size_t table_bytes() const;  // what all this takes of the host, the code apart
};

// Writes the code, or more than `kMostOfOne` bytes of it, which cannot run.
void generate(MachineCode& image);

// A handler, from compiled code: false where it found a fault.
using CallHandler = uint32_t (*)(Warp* warp, const Op* op, uint32_t lanes);
uint32_t call_handler(Warp* warp, const Op* op, uint32_t lanes);
// The same for an access whose site does not know the allocation yet.
uint32_t call_and_learn(Warp* warp, const Op* op, uint32_t lanes, uint32_t site);

}  // namespace gpukernel::simgpu::compiler
