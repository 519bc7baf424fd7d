// The address ranges, physical memory and mappings of one program (driver API chapter "Virtual Memory
// Management").
#pragma once

#include <map>
#include <memory>

#include "wire/body.h"
#include "wire/protocol.h"
#include "worker/lease/lease.h"

namespace gpukernel::worker {

class Session;

// Guarantees: physical memory is charged to the lease once, when it is created, and refunded when no program
// has a handle or a mapping of it any more; the driver sees only addresses, sizes and handles that belong to
// this program, since each is looked up here first.
class VirtualMemory {
  public:
    explicit VirtualMemory(Session& session) : session_(session) {}
    CUresult serve(wire::Reader& in, wire::Writer& out);
    // Names memory that was created to be shared; one handle of it more keeps it until that is released.
    CUresult share(uint64_t memory, SharedName& name);
    CUresult open(const SharedName& name, uint64_t& memory);
    // Releases everything that the program left.  The caller holds the lease's `allocation_mutex`.
    void end();

  private:
    // This program holds the memory while `references` or `mappings` is not 0.
    struct Physical {
        std::shared_ptr<PhysicalMemory> memory;
        uint64_t references, mappings;
    };
    struct Range {
        uint64_t bytes, room;  // what the program knows of, and what the driver reserved
    };
    struct Mapping {
        uint64_t bytes, name;
        CUmemAccess_flags access;
    };
    using Mapped = std::map<CUdeviceptr, Mapping>;

    CUresult granularity(CUmemAllocationGranularity_flags option, size_t& bytes);
    CUresult reserve(uint64_t bytes, uint64_t alignment, CUdeviceptr wanted, wire::Writer& out);
    CUresult free(CUdeviceptr address, uint64_t bytes);
    // Waits, without `allocation_mutex`, for memory whose release is under way.
    CUresult create(uint64_t bytes, uint64_t handle_type, wire::Writer& out,
                    std::unique_lock<std::mutex>& allocating);
    CUresult release(uint64_t name);
    CUresult map(CUdeviceptr address, uint64_t bytes, uint64_t offset, uint64_t name);
    CUresult unmap(CUdeviceptr address, uint64_t bytes);
    CUresult set_access(CUdeviceptr address, uint64_t bytes, CUmemAccess_flags access);
    CUresult retain(CUdeviceptr address, wire::Writer& out);

    CUmemAllocationProp properties() const;
    Mapped::iterator mapping(CUdeviceptr address);
    // Whether whole mappings cover the range without a gap.
    bool tiled(CUdeviceptr address, uint64_t bytes) const;
    // Lets go of the physical memory `name` if neither a handle nor a mapping of it is left.
    void settle(uint64_t name);
    // This program no longer holds it; the last one that did releases it.
    void let_go(PhysicalMemory& memory);

    Session& session_;
    std::map<CUdeviceptr, Range> reserved_;
    std::map<uint64_t, Physical> physical_;
    Mapped mapped_;
};

}  // namespace gpukernel::worker
