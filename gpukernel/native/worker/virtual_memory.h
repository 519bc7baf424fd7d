// Addresses, physical memory and mappings of one program (driver API chapter "Virtual Memory Management").
#pragma once

#include <map>

#include "lease.h"
#include "wire/body.h"
#include "wire/protocol.h"

namespace gpukernel::worker {

class Session;

// Memory counts where it is made and is given back when neither a handle nor a mapping of it is left.  The
// driver sees only what belongs to this program: every address, size and handle is looked up here first.
class VirtualMemory {
  public:
    explicit VirtualMemory(Session& session) : session_(session) {}
    CUresult serve(wire::Reader& in, wire::Writer& out);
    void end();  // everything that the program left; under the lease's `taking`

  private:
    struct Physical {
        CUmemGenericAllocationHandle handle;  // the worker's one reference, as long as anything needs it
        uint64_t bytes, references, mappings;
    };
    struct Mapping {
        uint64_t bytes, name;
        CUmemAccess_flags access;
    };
    using Mapped = std::map<CUdeviceptr, Mapping>;

    CUresult granularity(CUmemAllocationGranularity_flags option, size_t& bytes);
    CUresult reserve(uint64_t bytes, uint64_t alignment, CUdeviceptr wanted, wire::Writer& out);
    CUresult free(CUdeviceptr address, uint64_t bytes);
    CUresult create(uint64_t bytes, wire::Writer& out, std::unique_lock<std::mutex>& taking);
    CUresult release(uint64_t name);
    CUresult map(CUdeviceptr address, uint64_t bytes, uint64_t offset, uint64_t name);
    CUresult unmap(CUdeviceptr address, uint64_t bytes);
    CUresult set_access(CUdeviceptr address, uint64_t bytes, CUmemAccess_flags access);
    CUresult retain(CUdeviceptr address, wire::Writer& out);

    CUmemAllocationProp properties() const;
    Mapped::iterator mapping(CUdeviceptr address);
    bool tiled(CUdeviceptr address, uint64_t bytes) const;  // by whole mappings, without a gap
    void settle(uint64_t name);                             // gives it back where nothing refers to it

    Session& session_;
    std::map<CUdeviceptr, uint64_t> reserved_;
    std::map<uint64_t, Physical> physical_;
    Mapped mapped_;
};

}  // namespace gpukernel::worker
