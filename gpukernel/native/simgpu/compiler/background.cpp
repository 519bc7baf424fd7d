// The thread that compiles what is warm while the interpreter goes on.
//
// One kernel at a time, so that all of it takes no more than one kernel's tables and one thread of the
// worker, whose share of the processors is the slice's.  The thread ends when nothing waits.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "simgpu/compiler/compiler.h"

namespace gpukernel::simgpu::compiler {
namespace {

constexpr size_t kMostWaiting = 256;

struct Waiting {
    const Function* function;
    bool rows;
    bool operator==(const Waiting&) const = default;
};

struct Background {
    std::mutex mutex;
    std::condition_variable done;
    std::deque<Waiting> waiting;
    const Function* current = nullptr;
    bool running = false;

    void serve() {
        std::unique_lock lock(mutex);
        while (!waiting.empty()) {
            const Waiting next = waiting.front();
            waiting.pop_front();
            current = next.function;
            lock.unlock();
            try {
                compile(*next.function, next.rows);
            } catch (const std::exception&) {  // no memory, most likely: the interpreter needs no more
                not_compiled(*next.function, next.rows);
            }
            lock.lock();
            current = nullptr;
            done.notify_all();
        }
        running = false;
    }
};
Background& background() {
    static Background* const only = new Background;  // its thread may outlive main
    return *only;
}

}  // namespace

bool compile_later(const Function& function, bool rows) {
    Background& all = background();
    std::lock_guard lock(all.mutex);
    const Waiting wanted{&function, rows};
    if (std::find(all.waiting.begin(), all.waiting.end(), wanted) != all.waiting.end()) return true;
    if (all.waiting.size() == kMostWaiting) return false;
    all.waiting.push_back(wanted);
    if (all.running) return true;
    try {
        std::thread([&all] { all.serve(); }).detach();
    } catch (const std::system_error&) {  // no thread to be had
        all.waiting.pop_back();
        return false;
    }
    all.running = true;
    return true;
}

void forget(const Program& program) {
    Background& all = background();
    std::unique_lock lock(all.mutex);
    const auto of_it = [&](const Function* function) {
        return std::any_of(program.functions.begin(), program.functions.end(),
                           [&](const auto& one) { return one.get() == function; });
    };
    std::erase_if(all.waiting, [&](const Waiting& one) { return of_it(one.function); });
    all.done.wait(lock, [&] { return !all.current || !of_it(all.current); });
}

}  // namespace gpukernel::simgpu::compiler
