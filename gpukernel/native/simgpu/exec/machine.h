// Decoded code and the machine that it runs on: the data shared by the decoder, the scheduler and the
// instruction handlers.  Handlers are compiled once per x86-64 level; nothing here may generate code worth
// vectorising, so that the linker may keep any one copy of what is inline.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "simgpu/engine.h"
#include "simgpu/exec/matrix.h"
#include "simgpu/exec/texture.h"

namespace gpukernel::simgpu {

struct Warp;
struct Op;
using Handler = void (*)(Warp&, const Op&);

constexpr int kLanes = 32;
constexpr uint32_t kFull = 0xffffffffu;
constexpr int kBarriers = 16;
// Host memory for registers: of a block's kernel, and of the functions that its threads are in.
constexpr uint64_t kMostBlockRegisters = 512 << 20, kMostFrameRegisters = 512 << 20;
constexpr uint32_t kNoGuard = 0xffffffffu;

// Generic addresses: host user space is below 2^47, so the top byte names the window.
constexpr int kWindowShift = 56;
constexpr uint64_t kSharedWindow = 1ull << kWindowShift;
constexpr uint64_t kLocalWindow = 2ull << kWindowShift;
constexpr uint64_t kParamWindow = 3ull << kWindowShift;
constexpr uint64_t kFunctionWindow = 4ull << kWindowShift;
constexpr uint64_t kOffsetMask = (1ull << kWindowShift) - 1;
// An address of shared memory names another block of the cluster by its rank and one; 0: the block itself.
constexpr int kRankShift = 24;
constexpr uint64_t kSharedMask = (1ull << kRankShift) - 1;
constexpr uint64_t named_block(uint64_t address, uint64_t name) {  // the same place in that block
    return (address & ~(255ull << kRankShift)) | name << kRankShift;
}

enum class Space : uint8_t { generic, global, shared, local, param };

// Operations that the scheduler does itself; all others are plain handlers.
enum class Control : uint8_t {
    none,
    branch,
    branch_table,
    ret,
    exit,
    call,
    warp_sync,
    barrier,
    barrier_arrive,
    cluster_arrive,
    cluster_wait,
    warpgroup_wait,
    trap,
    yield,
};

enum class AccessKind : uint8_t { read, write, atomic };
enum class Named : uint8_t { memory, constant, parameter };  // by a load or store, for who counts accesses

// One decoded instruction.  Operands are byte offsets into the frame's registers, or, with the lowest bit
// set, into the function's table of broadcast constants.
struct Op {
    Handler fn = nullptr;
    int64_t imm = 0;
    uint32_t dst = 0, a = 0, b = 0, c = 0;
    uint32_t extra = 0;  // a second destination, or an index into Function::lists
    uint32_t aux = 0;    // branch target, call site, member mask operand
    uint32_t guard = kNoGuard;
    uint32_t line = 0;
    Control control = Control::none;
    bool guard_not = false;
    uint8_t sub = 0, sub2 = 0;
    uint16_t straight = 0;  // from here on so many operations are plain handlers without a guard
    uint16_t width = 1;     // so many operations from here on are done by this one's handler at once
    AccessKind access = AccessKind::read;  // for the text of a fault
    // Shared accesses through one address register in one straight stretch find the pattern of its lanes
    // once.
    uint8_t pattern = 0;        // Warp::patterns, from 1 on; 0: none
    bool same_pattern = false;  // as an operation before has left it
    bool fleeting = false;  // only the next operation, of the same handler, reads the result, as `a` or `c`
    bool pairs = false;     // does Warp::partner's, too
    bool whole = false;     // with this one all is done that its instruction asks for
    Named named = Named::memory;
};

// A video instruction, kept in Function::lists: `elements` sides of the registers, each of them from its own
// place.
enum class VideoOp : uint8_t { add, sub, absdiff, min, max, average, set, shl, shr, mad };
enum class VideoCompare : uint8_t { eq, ne, lt, le, gt, ge };
enum class VideoThen : uint8_t { nothing, merge, add, min, max };
struct VideoPlan {
    VideoOp what;
    VideoCompare compare;
    VideoThen then;
    uint8_t elements, mask;
    bool d_signed, a_signed, b_signed, saturate, wrap, plus_one, negate_product, negate_c;
    uint8_t shift;
    uint8_t d_start, d_bytes, a_bytes, b_bytes;  // in bytes
    uint8_t a_start[4], b_start[4];
};

struct Slot {
    uint32_t offset, size;
};
enum class Builtin : uint8_t { none, vprintf, assertfail, malloc, free, nanosleep, set_condition };
struct CallSite {
    int callee = -1;  // index into Program::functions; -1: indirect through Op::a, or a builtin
    Builtin builtin = Builtin::none;
    std::vector<uint32_t> args, rets;  // offsets in the caller's local frame
};

struct SourceLine {  // from .loc: which line of which file the PTX from `ptx_line` on is
    uint32_t ptx_line, line;
    std::string file;
};

namespace compiler {
struct Kernels;
enum class Tier : uint8_t { interpreter, compiled, automatic };
// What GPUKERNEL_SIMGPU_TIER says when a module is loaded: `interpreter`, `compiled`, or `auto` (so, too,
// where it is not set), which compiles what is warm.
Tier wanted_tier();
}  // namespace compiler
namespace profile {
struct KernelRow;
struct WatchPlan;
}  // namespace profile

struct Function {
    std::string name;
    std::vector<SourceLine> sources;
    bool kernel = false;
    std::vector<Op> code;
    std::vector<char> constants;            // broadcast immediates
    std::vector<uint32_t> lists;            // vector operands
    std::vector<TexturePlan> textures;      // texture and surface instructions
    std::vector<MatrixPlan> matrices;       // matrix instructions
    std::vector<WarpgroupPlan> warpgroups;  // those of four warps
    std::vector<CallSite> calls;
    std::vector<std::vector<uint32_t>> tables;  // brx.idx
    std::vector<Slot> params, rets;             // in the local frame
    uint32_t register_bytes = 0;                // of one warp
    uint32_t max_registers = 0;                 // of a thread, as .maxnreg says; 0: no limit
    uint32_t local_bytes = 0;                   // of one thread's frame
    uint32_t shared_bytes = 0;
    uint32_t dynamic_alignment = 16;  // of the shared memory whose size the launch says
    uint32_t dynamic_base() const {
        return (shared_bytes + dynamic_alignment - 1) / dynamic_alignment * dynamic_alignment;
    }
    uint32_t stack_bytes = 0;             // of one thread, with everything it calls
    std::string lacking;                  // an instruction that is not supported: told when it would run
    const char* constant_base = nullptr;  // 64-byte aligned copy of `constants`, minus one
    std::unique_ptr<char[]> constant_store;
    mutable std::shared_ptr<compiler::Kernels> compiled;           // of a kernel that was launched
    mutable std::atomic<profile::KernelRow*> row{nullptr};         // the same
    mutable std::shared_ptr<const profile::WatchPlan> watch_plan;  // of one that was profiled
    KernelInfo info;
};

struct Program {
    std::vector<std::unique_ptr<Function>> functions;
    compiler::Tier tier = compiler::wanted_tier();
};

struct Frame {
    char* registers = nullptr;
    const Function* function = nullptr;
    Frame* caller = nullptr;
    const Op* return_to = nullptr;
    uint32_t mask = 0;
    uint32_t local_base = 0;
    uint32_t depth = 0;
    const CallSite* site = nullptr;
    size_t capacity = 0;
};

enum class Wait : uint8_t { ready, warp, barrier, cluster, warpgroup };
struct Group {  // lanes of a warp that run together
    Frame* frame;
    const Op* ip;
    uint32_t mask;
    Wait wait;
    uint8_t barrier;
    bool deferred;
};

struct BlockState;
// A block's shared memory with the rest of its last granule, which is nobody else's.
constexpr uint64_t padded_shared(uint64_t bytes) { return (bytes + 127) / 128 * 128; }

struct LaunchState;

struct CachedRange {
    uint64_t lo = 0, hi = 0;
};

struct Pattern {  // of 32 shared addresses: where each eight lanes begin, without the offset of the
                  // instruction
    uint64_t first[4];
    uint8_t shape;
};
constexpr uint8_t kPatterns = 8;

struct alignas(64) Warp {
    const char* base[2];  // registers, constants - 1
    char* registers;
    uint32_t exec;            // lanes that the current instruction runs for
    const Op* end;            // of the straight stretch that runs: no handler goes further
    Warp* partner = nullptr;  // another warp, all of which runs the same instructions as all of this one
    uint32_t live;
    bool touched = false;  // an atomic or volatile access since the last back edge: maybe a spin
    Frame* frame;
    char* shared;
    uint64_t shared_bytes;
    char* local;
    uint64_t local_stride;  // bytes of one thread
    const char* params;
    uint64_t param_bytes;
    CachedRange cache[2];
    uint64_t age = 0;             // of what it keeps of allocations (exec/kernel_threads.h)
    uint32_t known_patterns = 0;  // one bit each
    Pattern patterns[kPatterns + 1];
    const Op* resumes = nullptr;  // behind the barrier at which compiled code has left it
    uint64_t texture_handle = 0;  // the last that was looked up in this launch
    const Texture* texture = nullptr;
    BlockState* block;
    LaunchState* launch;
    uint32_t index;
    uint32_t started;  // lanes that exist
    uint32_t arrived;  // at the cluster's barrier, and not yet behind it
    uint32_t odd;      // of those, who arrived in a phase with an odd number
    Group groups[kLanes];
    int group_count;
    alignas(64) uint32_t tid[3][kLanes];
};

// Turns every active lane's address into a host pointer, or throws the fault.
// `align`: what each must be a multiple of; 0: its size, up to 16.
void resolve_slowly(Warp& warp, const Op& op, uint64_t* address, uint32_t size, Space space,
                    uint32_t align = 0);
// Matrix instructions that not all lanes execute, or for which `lane` names another place than the first.
[[noreturn]] void not_a_whole_warp(const Warp& warp, const Op& op, const std::string& text);
[[noreturn]] void not_the_same_matrix(const Warp& warp, const Op& op, int lane, const MatrixPlan& plan);
// exec/hopper/warpgroups.cpp: a warp does its part of a multiplication, and ends a group of them.
void warpgroup_multiplies(Warp& warp, const Op& op, const WarpgroupPlan& plan, uint64_t a, uint64_t b,
                          bool adds);
void warpgroup_commits(Warp& warp, const Op& op, const WarpgroupPlan& plan);
[[noreturn]] void not_one_descriptor(const Warp& warp, const Op& op, int lane, const WarpgroupPlan& plan);
[[noreturn]] void not_a_tensor_map(const Warp& warp, const Op& op, int lane, const char* why,
                                   bool unsupported = false);
[[noreturn]] void not_a_cache_policy(const Warp& warp, const Op& op, int lane, uint64_t policy);
[[noreturn]] void not_a_bulk_size(const Warp& warp, const Op& op, int lane, uint32_t size);
[[noreturn]] void stack_overflow(const Warp& warp, int lane);
uint64_t special_register(Warp& warp, int lane, int which);

struct Fault {
    Status status;
    std::string message;
};

struct HandlerEntry {
    const char* key;
    Handler fn;
    bool several = false;  // it goes on through its neighbours with the same handler, Op::width of them
};
struct HandlerTable {
    const HandlerEntry* entries;
    size_t count;
};
// The handler of a normalised instruction name for this machine's processor, or nullptr.
Handler find_handler(std::string_view key);
bool does_several(Handler handler);
// A name that finds the handler, of which several may find the same one; empty: it has none.
std::string_view handler_name(Handler handler);

enum SpecialRegister : int {
    kTidX,
    kTidY,
    kTidZ,
    kNtidX,
    kNtidY,
    kNtidZ,
    kCtaidX,
    kCtaidY,
    kCtaidZ,
    kNctaidX,
    kNctaidY,
    kNctaidZ,
    kLaneId,
    kWarpId,
    kNwarpId,
    kSmId,
    kNsmId,
    kGridId,
    kLanemaskEq,
    kLanemaskLe,
    kLanemaskLt,
    kLanemaskGe,
    kLanemaskGt,
    kClock,
    kClockHi,
    kClock64,
    kGlobalTimer,
    kGlobalTimerLo,
    kGlobalTimerHi,
    kDynamicSmem,
    kTotalSmem,
    kDynamicBase,
    kWorkspaceHigh,
    kWorkspaceLow,
    kClusterIdX,
    kClusterIdY,
    kClusterIdZ,
    kNclusterIdX,
    kNclusterIdY,
    kNclusterIdZ,
    kClusterCtaidX,
    kClusterCtaidY,
    kClusterCtaidZ,
    kClusterNctaidX,
    kClusterNctaidY,
    kClusterNctaidZ,
    kClusterCtaRank,
    kClusterNctaRank,
    kIsExplicitCluster,
    kZero,
};

}  // namespace gpukernel::simgpu
