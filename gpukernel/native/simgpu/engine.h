// The engine's interface.  `driver/` (the CUDA driver API) stands on top of it; `ptx/` and `exec/` (decode
// PTX, execute it) stand below it.  Neither side knows more of the other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/execution_gate.h"
#include "simgpu/texture.h"

namespace gpukernel::simgpu {

// Physical memory apart from the addresses that it is mapped at (driver API chapter "Virtual Memory
// Management").  `false`, zero and `invalid`: an address, size or handle that does not fit.
class VirtualMemory {
  public:
    static constexpr size_t GRANULARITY = 2 << 20;
    enum class Access : uint8_t { none, read, write };
    enum class Outcome { done, invalid, out_of_memory };
    struct Mapping {
        uint64_t address;
        size_t bytes;
        uint64_t handle;
        Access access;
    };
    virtual ~VirtualMemory() = default;
    // At `wanted` where that is free; nullopt when the host has no such room.
    virtual std::optional<uint64_t> reserve(size_t bytes, size_t alignment, uint64_t wanted) = 0;
    virtual bool free(uint64_t address, size_t bytes) = 0;
    // Whether memory was ever mapped in the reservation at `address`, so that a kernel may still reach for
    // it.
    virtual bool used(uint64_t address) const = 0;
    // Zero-filled, committed on first touch, and given back when neither a reference nor a mapping is left;
    // nullopt when the capacity would be exceeded.
    virtual std::optional<uint64_t> create(size_t bytes) = 0;
    virtual bool release(uint64_t handle) = 0;
    virtual size_t size_of(uint64_t handle) const = 0;
    virtual Outcome map(uint64_t address, size_t bytes, uint64_t handle) = 0;
    virtual bool unmap(uint64_t address, size_t bytes) = 0;  // whole mappings, without a gap between them
    virtual bool set_access(uint64_t address, size_t bytes, Access access) = 0;  // the same
    virtual std::optional<Mapping> mapping(uint64_t address) const = 0;
    virtual uint64_t retain(uint64_t address) = 0;  // the handle mapped there, with one reference more
    // The description of a forbidden access, for people; empty where none of these addresses is meant.
    virtual std::string trouble(uint64_t address, size_t bytes, bool writing) const = 0;
};

// A device address is the host address of the byte that backs it, inside one reserved range, so that a lane's
// load is a load.  Every access is checked against the live allocations.
class DeviceMemory {
  public:
    virtual ~DeviceMemory() = default;
    struct Block {
        uint64_t address;
        size_t bytes;
        bool writable = true;
        uint64_t number = 0;  // no other allocation ever has it
    };
    // What counts as used: what programs allocate, and not what is the context's own (the heap of malloc() in
    // kernels as large as it is at first, the barriers of cooperative launches), as on a real device.
    enum class Account : uint8_t { programs, context };
    static constexpr size_t GRANULE = 512;  // the last one of an allocation is nobody else's
    // Aligned to that, from 2 MiB on 2 MiB aligned; zero-filled pages committed on first touch; nullopt when
    // `capacity` would be exceeded.
    virtual std::optional<uint64_t> allocate(size_t bytes, Account account = Account::programs) = 0;
    virtual bool free(uint64_t address) = 0;  // false: not the start of a live allocation
    virtual std::optional<Block> find(uint64_t address) const = 0;
    virtual std::optional<Block> nearest(uint64_t address) const = 0;  // for the text of a fault
    // Wholly inside one live allocation, or in mapped memory that may be read (or written).
    virtual bool valid(uint64_t address, size_t bytes, bool writing = false) const = 0;
    virtual VirtualMemory& virtual_memory() = 0;
    // The heap of malloc() and free() in kernels: a part of the memory, never more than its limit (8 MiB
    // until cuCtxSetLimit says otherwise).
    virtual std::optional<uint64_t> allocate_heap(size_t bytes) = 0;
    virtual bool free_heap(uint64_t address) = 0;
    virtual bool limit_heap(size_t bytes) = 0;  // false: it holds more
    virtual void clear_heap() = 0;
    // Counts `bytes` as used that a limit of the context sets aside; false where they do not fit.
    virtual bool set_aside(int limit, size_t bytes) = 0;
    virtual size_t capacity() const = 0;
    virtual size_t used() const = 0;
    virtual void tell(std::atomic<uint64_t>& used) = 0;  // keeps the figure up to date there
};
std::unique_ptr<DeviceMemory> make_device_memory(size_t capacity_bytes);

enum class Status {
    ok,
    invalid_ptx,      // text is not PTX, or breaks its grammar       -> CUDA_ERROR_INVALID_PTX
    unsupported,      // an instruction or directive that is lacking   -> CUDA_ERROR_NOT_SUPPORTED
    illegal_address,  // out of bounds                                 -> CUDA_ERROR_ILLEGAL_ADDRESS, sticky
    misaligned_address,   //                                               -> CUDA_ERROR_MISALIGNED_ADDRESS,
                          //                                               sticky
    illegal_instruction,  // an operand that none takes                   -> CUDA_ERROR_ILLEGAL_INSTRUCTION,
                          // sticky
    illegal_barrier,      // deadlocked or mismatched barrier              -> CUDA_ERROR_LAUNCH_FAILED, sticky
    trap,                 // trap, brkpt                                   -> CUDA_ERROR_LAUNCH_FAILED, sticky
    assertion,            // __assertfail                                  -> CUDA_ERROR_ASSERT, sticky
    invalid_launch,       // sizes out of range                            -> CUDA_ERROR_INVALID_VALUE
    out_of_memory,
    not_found,  // an extern symbol that nothing defines         -> CUDA_ERROR_INVALID_PTX at link
};
struct Result {
    Status status = Status::ok;
    std::string message;  // names the instruction, the line, or the address, thread and kernel
    explicit operator bool() const { return status == Status::ok; }
};

struct Param {
    uint32_t offset, size;
};
struct Dim3 {
    uint32_t x = 1, y = 1, z = 1;
    uint64_t volume() const { return uint64_t{x} * y * z; }
    bool operator==(const Dim3&) const = default;
};
struct KernelInfo {
    std::string name;
    std::vector<Param> params;
    uint32_t param_bytes;  // size of the parameter block, offsets as the PTX ABI lays it out
    uint32_t static_shared_bytes;
    uint32_t constant_bytes;        // of the module's constant variables: all its kernels share one bank
    uint32_t local_bytes;           // per thread
    uint32_t registers;             // per thread, 32-bit equivalents, an estimate
    uint32_t max_threads;           // per block: .maxntid or 1024
    Dim3 cluster{0, 0, 0};          // .reqnctapercluster: blocks; zeros: the launch says
    uint32_t max_cluster = 0;       // .maxclusterrank: blocks; 0: whatever the device takes
    bool explicit_cluster = false;  // .explicitcluster: the launch must say
};
struct GlobalInfo {
    std::string name;
    uint64_t address;  // in device memory
    size_t bytes;
    bool managed = false;  // the program uses it too
};

struct Launch {
    Dim3 grid, block;
    Dim3 cluster;              // blocks that run at the same time and reach each other's shared memory
    bool in_clusters = false;  // somebody asked for clusters, be it of one block (%is_explicit_cluster)
    uint32_t dynamic_shared_bytes = 0;
    const void* params =
        nullptr;               // KernelInfo::param_bytes bytes, copied before run() returns control to others
    bool cooperative = false;  // every block resident: grid barriers work
    const std::atomic<bool>* cancel = nullptr;    // polled at back edges; set: stop with Status::trap
    const ExecutionGate* gate = nullptr;          // none: never paused
    std::shared_ptr<const Textures> textures;     // as they were when the launch was submitted; or none
    std::function<void(std::string_view)> print;  // device printf's text, called from any thread
    // Whether an access past an allocation's last byte is a fault though it stays in its granule (512 bytes,
    // of shared memory 128); else `warn` gets a sentence about the first one, from any thread.
    bool strict = false;
    std::function<void(const std::string&)> warn;
    // For who counts: the program's range (NVTX), and how many of these blocks and how many warps a
    // multiprocessor can have, and what bounds the blocks.
    std::string range;
    uint32_t resident_blocks = 0, most_warps = 0;
    const char* limit = "";
};

// PTX texts linked to one image: immutable code, and the module's own global and constant variables.
class Module {
  public:
    virtual ~Module() = default;
    virtual const std::vector<std::string>& kernels() const = 0;
    // Of a kernel of a large text that nobody has used yet (`unread`) the registers, shared and local memory
    // are not known.
    virtual const KernelInfo* kernel(std::string_view name) const = 0;
    virtual size_t unread(std::string_view kernel) const = 0;  // bytes of its text; 0: it is known
    // Reads such a kernel, once; what is wrong with its text is the answer, and stays it.
    virtual Result prepare(std::string_view kernel, std::string& log) = 0;
    virtual const std::vector<GlobalInfo>& globals() const = 0;  // .global and .const, module scope
    // Texture and surface references of module scope: the address is what their instructions ask `textures`
    // for.
    virtual const std::vector<GlobalInfo>& texture_references() const = 0;
    virtual const std::vector<GlobalInfo>& surface_references() const = 0;
    // Runs to completion on the calling thread and the engine's pool.  Thread-safe; launches of different
    // streams may overlap.
    virtual Result run(std::string_view kernel, const Launch& launch) = 0;
};

// Runs `pieces` pieces of work that is no kernel (native_work.h) on the calling thread and the engine's pool.
// Of the launch only `cancel` and `gate` count.  A piece returns false after it has written `fault` (256
// bytes).
Result run_pieces(uint64_t pieces, const std::function<bool(uint64_t piece, char* fault)>& run,
                  const Launch& launch);

// `log` gets what a person should read: the line, the instruction, the reason.  `device_sm` (70, 80, 90)
// answers %nv_..., .target checks and kernels that ask.  Kernels of large texts are read by `prepare`;
// `charge` is told, before anything is read, how many bytes of text are read now and how many are kept for
// later.
using Charge = std::function<bool(uint64_t now, uint64_t later)>;
Result load_module(const std::vector<std::string_view>& ptx_texts, DeviceMemory& memory, int device_sm,
                   int multiprocessors, std::unique_ptr<Module>& module, std::string& log,
                   const Charge& charge = {});

}  // namespace gpukernel::simgpu
