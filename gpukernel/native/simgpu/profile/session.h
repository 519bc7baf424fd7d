// Counted launches: what every warp of them did, by kernel, shape of its blocks, and range of the program.
//
// Nothing of this costs a launch that is not counted more than one look at a flag.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "common/kernel_table.h"
#include "simgpu/profile/kernel_rows.h"
#include "simgpu/profile/watch.h"

namespace gpukernel::simgpu {

struct Launch;

namespace profile {

bool counting();

// One launch while it is counted.
class CountedLaunch {
  public:
    // nullptr where nobody counts.
    static std::unique_ptr<CountedLaunch> begin(const Function& kernel, const Launch& launch);
    void add(const Watcher& watcher);  // from any thread, when its blocks have ended
    void end(uint64_t nanoseconds, bool failed);

  private:
    CountedLaunch(const Function& kernel, const Launch& launch, uint64_t generation);
    const Function& kernel_;
    const Launch& launch_;
    const uint64_t generation_;
    std::mutex mutex_;
    KernelCounts counts_;
    uint64_t blocks_ = 0;
    std::map<std::pair<std::string, uint32_t>, uint64_t> lines_;
};

uint64_t control(Profiling what, void (*row)(void* to, const KernelProfile& one), void* to);

}  // namespace profile
}  // namespace gpukernel::simgpu
