#include "simgpu/exec/kernel_threads.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "simgpu/exec/machine.h"

namespace gpukernel::simgpu {

std::atomic<uint64_t> age_of_allocations{1};

namespace {
constexpr uint64_t NONE = 0;  // the thread runs no warp
constexpr auto PAUSE = std::chrono::microseconds(20), LONGEST_PAUSE = std::chrono::microseconds(1000);

struct All {
    std::mutex mutex;
    std::vector<std::atomic<uint64_t>*> threads;
};
All& all() {
    static All* const only = new All;  // threads may outlive main
    return *only;
}

// The age of what this thread's running warp keeps.
struct Mine {
    std::atomic<uint64_t> seen{NONE};
    Mine() {
        std::lock_guard lock(all().mutex);
        all().threads.push_back(&seen);
    }
    ~Mine() {
        std::lock_guard lock(all().mutex);
        std::erase(all().threads, &seen);
    }
};
std::atomic<uint64_t>& mine() {
    thread_local Mine one;
    return one.seen;
}
}  // namespace

void forget_allocations() {
    const uint64_t now = age_of_allocations.fetch_add(1) + 1;
    if (mine().load(std::memory_order_relaxed) != NONE) return;
    auto pause = PAUSE;
    for (;;) {
        {
            std::lock_guard lock(all().mutex);
            const auto& threads = all().threads;
            if (std::none_of(threads.begin(), threads.end(), [&](const std::atomic<uint64_t>* seen) {
                    const uint64_t its = seen->load();
                    return its != NONE && its < now;
                }))
                return;
        }
        std::this_thread::sleep_for(pause);
        pause = std::min(2 * pause, LONGEST_PAUSE);
    }
}

void renew(Warp& warp) {
    const uint64_t now = age_of_allocations.load();
    if (warp.age != now) {
        warp.cache[0] = warp.cache[1] = {};
        warp.texture = nullptr;
        warp.age = now;
    }
    if (std::atomic<uint64_t>& seen = mine(); seen.load(std::memory_order_relaxed) != now) seen = now;
}

RunsWarps::RunsWarps() { mine() = age_of_allocations.load(); }
RunsWarps::~RunsWarps() { mine() = NONE; }
RunsNone::RunsNone() { mine() = NONE; }
RunsNone::~RunsNone() { mine() = age_of_allocations.load(); }

}  // namespace gpukernel::simgpu
