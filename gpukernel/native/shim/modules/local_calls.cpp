#include "shim/modules/local_calls.h"

#include <condition_variable>
#include <map>
#include <mutex>

#include "shim/transport/threads.h"

namespace gpukernel::shim {

namespace {
// Of one connection: functions that wait for their turn.
class Runner {
  public:
    explicit Runner(Connection& connection) : run_(connection.finished.run) {}
    bool start() {
        return start_thread([this] { work(); });
    }
    // Several threads may come in another order than that of their numbers.
    void add(const HostCall& call, uint64_t number) {
        std::lock_guard lock(mutex_);
        waiting_.emplace(number, call);
        changed_.notify_all();
    }
    void wait(uint64_t number) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return run_ >= number; });
    }

  private:
    void work() {
        for (;;) {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return waiting_.contains(run_ + 1); });
            const HostCall call = waiting_.extract(run_ + 1).mapped();
            lock.unlock();
            perform(call, CUDA_SUCCESS);
            lock.lock();
            ++run_;
            changed_.notify_all();
        }
    }

    std::atomic<uint64_t>& run_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<uint64_t, HostCall> waiting_;  // by number
};

Runner* runner_of(Connection& connection) {
    static std::mutex mutex;
    static auto* const runners = new std::map<Connection*, std::unique_ptr<Runner>>;  // threads are in them
    std::lock_guard lock(mutex);
    std::unique_ptr<Runner>& runner = (*runners)[&connection];
    if (!runner) {
        auto fresh = std::make_unique<Runner>(connection);
        if (!fresh->start()) return nullptr;
        runner = std::move(fresh);
    }
    return runner.get();
}
}  // namespace

bool can_run_here(Connection& connection) { return runner_of(connection) != nullptr; }

void run_here(Connection& connection, const HostCall& call, uint64_t number) {
    runner_of(connection)->add(call, number);
}

void wait_for_calls(Connection& connection, uint64_t number) {
    if (connection.finished.run < number) runner_of(connection)->wait(number);
}

void wait_for_all_calls(Connection& connection) {
    uint64_t calls;
    {
        std::lock_guard lock(connection.mutex);
        calls = connection.finished.calls;
    }
    wait_for_calls(connection, calls);
}

}  // namespace gpukernel::shim
