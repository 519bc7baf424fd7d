// What the programs of a lease share with each other by name: memory, which has its name in `Lease`, and
// events (IPC of the driver API); physical memory (its chapter "Virtual Memory Management").
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "worker/lease/host_memory.h"
#include "worker/server/driver.h"

namespace gpukernel::worker {

// Random, so that nobody opens what it was not told of.
using SharedName = std::array<uint64_t, 2>;
std::optional<SharedName> new_shared_name();

// Events made with CU_EVENT_INTERPROCESS.  Guarantees: one is destroyed once nobody has a handle of it any
// more, and charged to the host's memory until then.  Any thread may call.
class SharedEvents {
  public:
    // `program` is the number of the program that made it (Session::program_number).
    void add(CUevent event, uint64_t program, HostCharge charge);
    std::optional<SharedName> name_of(CUevent event);  // nothing where it was not made for it
    // One more handle, for another program than the one that made it; else the error.
    CUresult open(const SharedName& name, uint64_t program, CUevent& event);
    CUresult destroy(Driver& cuda, CUevent event);  // a handle of any event

  private:
    struct Shared {
        uint64_t program;
        HostCharge charge;
        int handles = 1;
        std::optional<SharedName> name;
    };
    std::mutex mutex_;
    std::map<CUevent, Shared> events_;
};

// Physical memory, which the programs that have a handle or a mapping of it hold together.
struct PhysicalMemory {
    CUmemGenericAllocationHandle handle;
    uint64_t bytes;
    CUmemAllocationHandleType handle_type;
    std::vector<const void*> holders;  // the first one is charged
    std::optional<SharedName> name;
};

}  // namespace gpukernel::worker
