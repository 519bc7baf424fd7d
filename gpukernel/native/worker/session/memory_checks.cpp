#include "worker/session/memory_checks.h"

#include <unordered_map>
#include <utility>

namespace gpukernel::worker {

namespace {
constexpr size_t MOST_WARNINGS = 64;  // of one program

// By number, which is never given again: a kernel may outlive the connection that launched it.
struct Programs {
    std::mutex mutex;
    std::unordered_map<uint64_t, MemoryChecks*> living;
    uint64_t last = 0;
};
Programs& programs() {
    static Programs* const all = new Programs;
    return *all;
}
}  // namespace

MemoryChecks::MemoryChecks() : check_{false, 0, tell} {
    std::lock_guard lock(programs().mutex);
    check_.program = ++programs().last;
    programs().living[check_.program] = this;
}

MemoryChecks::~MemoryChecks() {
    std::lock_guard lock(programs().mutex);
    programs().living.erase(check_.program);
}

void MemoryChecks::tell(uint64_t program, const char* sentence) {
    std::lock_guard all(programs().mutex);
    const auto found = programs().living.find(program);
    if (found == programs().living.end()) return;
    MemoryChecks& one = *found->second;
    std::lock_guard lock(one.mutex_);
    if (one.told_) return;
    one.told_ = true;
    one.sentence_ += sentence;
    one.waiting_ = true;
}

void MemoryChecks::warn(const std::string& sentence) {
    std::lock_guard lock(mutex_);
    if (warnings_.size() == MOST_WARNINGS || !warnings_.insert(sentence).second) return;
    sentence_ += std::string(WARNING) + sentence + ".\n";
    waiting_ = true;
}

std::string MemoryChecks::sentence() {
    if (!waiting_) return {};
    std::lock_guard lock(mutex_);
    waiting_ = false;
    return std::exchange(sentence_, {});
}

}  // namespace gpukernel::worker
