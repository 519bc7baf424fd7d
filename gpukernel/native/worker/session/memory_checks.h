// How the kernels of one program are checked, and what the simulated GPU found: one sentence for the program.
#pragma once

#include <atomic>
#include <mutex>
#include <set>
#include <string>

#include "common/memory_check.h"

namespace gpukernel::worker {

class MemoryChecks {
  public:
    MemoryChecks();
    ~MemoryChecks();
    MemoryChecks(const MemoryChecks&) = delete;

    void be_strict(bool strict) { check_.strict = strict; }
    // Has the launches of this thread checked so, where the device can.
    void apply(SetMemoryCheck set) const {
        if (set) set(&check_);
    }
    // The sentence about the program's first access past an allocation, once it is there; then never again.
    std::string sentence();
    bool has_sentence() const { return waiting_; }
    // Any other sentence for the program, which it is told once.
    void warn(const std::string& sentence);

  private:
    static void tell(uint64_t program, const char* sentence);

    MemoryCheck check_;
    std::atomic<bool> waiting_{false};
    std::mutex mutex_;  // guards what follows
    bool told_ = false;
    std::string sentence_;
    std::set<std::string> warnings_;
};

}  // namespace gpukernel::worker
