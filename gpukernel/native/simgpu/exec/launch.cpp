// Distributes a grid's blocks, cluster by cluster, over the threads of one lazily made pool; the calling
// thread takes part.
#include "simgpu/exec/launch.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <numeric>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "simgpu/engine.h"
#include "simgpu/exec/block.h"
#include "simgpu/exec/kernel_threads.h"

namespace gpukernel::simgpu {
namespace {

constexpr size_t kKeep = 4u << 20;         // storage that a resting thread may hold
constexpr timespec kRest{0, 100'000'000};  // after which a kernel that rests says so again
constexpr unsigned kLook = 16;             // so many clusters end between two looks at what else happens
constexpr uint64_t kSteps = 16;       // in one step a thread takes a sixteenth of what its part has left,
constexpr uint64_t kMostAtOnce = 64;  // at most, so that others find the rest
const std::atomic<uint32_t> kAlwaysOpen{0};
thread_local std::chrono::nanoseconds rested{0};  // by this thread, in all

size_t thread_count() {
    static const size_t count = [] {
        if (const char* text = std::getenv("GPUKERNEL_SIMGPU_THREADS"))
            if (int n = std::atoi(text); n > 0) return static_cast<size_t>(n);
        return static_cast<size_t>(std::max(1u, std::thread::hardware_concurrency()));
    }();
    return count;
}

struct Job {
    std::function<void()> work;
    std::atomic<size_t> running{0};
    bool closed = false;
};

class ThreadPool {
  public:
    // Runs `work` on the caller and on up to `helpers` threads; returns when all that began have ended.
    void run(size_t helpers, const std::function<void()>& work) {
        helpers = std::min(helpers, thread_count() - 1);
        if (!helpers) return work();
        auto job = std::make_shared<Job>();
        job->work = work;
        {
            std::lock_guard lock(mutex_);
            while (threads_ < thread_count() - 1) {
                std::thread([this] { serve(); }).detach();
                ++threads_;
            }
            for (size_t i = 0; i < helpers; ++i) queue_.push_back(job);
        }
        wake_.notify_all();
        work();
        std::unique_lock lock(mutex_);
        job->closed = true;
        std::erase(queue_, job);
        if (job->running) {
            lock.unlock();
            const auto until = std::chrono::steady_clock::now() + kSoon;
            while (job->running && std::chrono::steady_clock::now() < until) _mm_pause();
            lock.lock();
        }
        ended_.wait(lock, [&] { return job->running == 0; });
    }

  private:
    // Helpers take the last of the work and end together, mostly: to sleep and be woken takes longer.
    static constexpr std::chrono::microseconds kSoon{50};
    std::mutex mutex_;
    std::condition_variable wake_, ended_;
    std::deque<std::shared_ptr<Job>> queue_;
    size_t threads_ = 0;

    void serve() {
        std::unique_lock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return !queue_.empty(); });
            std::shared_ptr<Job> job = queue_.front();
            queue_.pop_front();
            if (job->closed) continue;
            ++job->running;
            lock.unlock();
            job->work();
            lock.lock();
            if (--job->running == 0) ended_.notify_all();
        }
    }
};

ThreadPool& pool() {
    static ThreadPool* const only = new ThreadPool;  // its threads may outlive main
    return *only;
}

// The clusters of a grid, in one part for each thread: neighbours, whose memory the processor fetches ahead.
//
// A thread goes through its part from the beginning.  Then it takes the first part that no thread has come
// for, or else the latter half of the largest rest.  So the earliest cluster that has not ended is always one
// that a thread runs: programs have a block wait for those before it.
class GridParts {
  public:
    GridParts(uint64_t all, size_t threads) : whole_(std::min<uint64_t>(all, threads)) {
        // Room for one more part of each thread that comes when all have been taken; no more come than there
        // are parts.
        if (const size_t most = 2 * whole_; most > few_.size())
            many_ = std::vector<Part>(most), parts_ = many_;
        const uint64_t each = all / whole_, more = all % whole_;
        for (uint64_t i = 0, begin = 0; i < whole_; ++i) {
            const uint64_t size = each + (i < more);
            parts_[i].next = begin, parts_[i].end = begin += size;
        }
    }

    // The clusters of one thread.
    class Own {
      public:
        explicit Own(GridParts& of) : of_(of) {}
        // Gives the next ones; false where no thread has any left.
        bool take(uint64_t& begin, uint64_t& end) {
            while (!of_.next_of(mine_, begin, end)) {
                if (!of_.find(mine_)) return false;
            }
            return true;
        }

      private:
        GridParts& of_;
        size_t mine_ = NONE;
    };

  private:
    static constexpr size_t NONE = SIZE_MAX;
    struct alignas(64) Part {
        std::mutex mutex;
        uint64_t next = 0, end = 0;
    };
    const size_t whole_;  // parts that the grid is cut into
    std::array<Part, 4> few_;
    std::vector<Part> many_;
    std::span<Part> parts_{few_};
    std::atomic<size_t> begun_{0}, late_{0};

    bool next_of(size_t part, uint64_t& begin, uint64_t& end) {
        if (part == NONE) return false;
        Part& from = parts_[part];
        std::unique_lock lock(from.mutex, std::defer_lock);
        if (whole_ > 1) lock.lock();  // or it is the one thread's
        if (from.next >= from.end) return false;
        const uint64_t share = std::clamp<uint64_t>((from.end - from.next) / kSteps, 1, kMostAtOnce);
        begin = from.next, end = from.next += share;
        return true;
    }

    // Has a thread whose part is empty go on with another one, or with half of it; false where all are empty.
    bool find(size_t& mine) {
        if (const size_t first = begun_.load() < whole_ ? begun_.fetch_add(1) : whole_; first < whole_) {
            mine = first;
            return true;
        }
        if (whole_ == 1) return false;
        if (mine == NONE) mine = whole_ + late_.fetch_add(1);
        for (;;) {
            size_t from = NONE;
            uint64_t most = 0;
            for (size_t i = 0, used = whole_ + late_; i < used; ++i) {
                std::lock_guard lock(parts_[i].mutex);
                const uint64_t left = parts_[i].end - parts_[i].next;
                if (left > most) from = i, most = left;
            }
            if (from == NONE) return false;
            uint64_t begin = 0, end = 0;
            {
                std::lock_guard lock(parts_[from].mutex);
                begin = parts_[from].next + (parts_[from].end - parts_[from].next) / 2;
                end = std::exchange(parts_[from].end, begin);
            }
            if (begin == end) continue;  // its own thread was faster
            std::lock_guard lock(parts_[mine].mutex);
            parts_[mine].next = begin, parts_[mine].end = end;
            return true;
        }
    }
};

// A cooperative launch keeps all clusters resident: the thread turns over what it has taken.
void run_clusters(LaunchState& state, GridParts& parts, bool resident) {
    thread_local std::unique_ptr<Cluster> kept;
    const RunsWarps runs;
    unsigned csr = _mm_getcsr(), done = 0;
    const compiler::CompiledKernel* code = state.compiled;
    const auto watcher = state.counted ? std::make_unique<profile::Watcher>() : nullptr;
    try {
        GridParts::Own own(parts);
        uint64_t n = 0, end = 0;
        auto next = [&](Cluster& cluster) {
            if (n == end && !own.take(n, end)) return false;
            cluster.start(n);
            return true;
        };
        if (!resident) {
            if (!kept) kept = std::make_unique<Cluster>();
            kept->prepare(state, code, watcher.get());
            bool by_blocks = code && kept->blocks.size() == 1;
            while (!state.stop.load(std::memory_order_relaxed) && next(*kept)) {
                compiler::Ran ran{1, false};
                if (by_blocks)
                    ran = compiler::run_blocks(*kept->blocks[0], std::min<uint64_t>(end - n, kLook));
                else
                    kept->start_warps();
                while (!ran.ended && !kept->run_slice()) {
                }
                n += ran.blocks;
                if ((done += static_cast<unsigned>(ran.blocks)) >= kLook) done = 0, state.go_on();
                if (!state.awaited || code || !(code = state.awaited->look())) continue;
                kept->prepare(state, code, nullptr);
                by_blocks = kept->blocks.size() == 1;
                state.taken_over = true;
            }
        } else {
            std::vector<std::unique_ptr<Cluster>> clusters;
            for (;;) {
                auto cluster = std::make_unique<Cluster>();
                cluster->prepare(state, code, watcher.get());
                if (!next(*cluster)) break;
                ++n;
                cluster->start_warps();
                clusters.push_back(std::move(cluster));
            }
            while (!clusters.empty() && !state.stop.load(std::memory_order_relaxed))
                std::erase_if(clusters, [](const auto& cluster) { return cluster->run_slice(); });
        }
    } catch (Fault& fault) {
        std::lock_guard lock(state.fault_mutex);
        if (!state.stop.exchange(true)) state.fault = std::move(fault);
    } catch (const std::bad_alloc&) {
        std::lock_guard lock(state.fault_mutex);
        if (!state.stop.exchange(true))
            state.fault = {Status::out_of_memory, "the host has no memory for a simulated block"};
    } catch (const std::exception& error) {
        std::lock_guard lock(state.fault_mutex);
        if (!state.stop.exchange(true)) state.fault = {Status::trap, error.what()};
    }
    _mm_setcsr(csr);
    if (watcher) state.counted->add(*watcher);
    if (kept && std::accumulate(kept->blocks.begin(), kept->blocks.end(), size_t{0},
                                [](size_t sum, const auto& block) {
                                    return sum + (block ? block->kept_bytes() : 0);
                                }) > kKeep)
        kept.reset();
}

// The time that a launch takes, without that in which its device is another slice's.
class LaunchTime {
  public:
    std::chrono::nanoseconds taken() const {
        const std::chrono::nanoseconds since = std::chrono::steady_clock::now() - begun_;
        return std::max(since - (rested - rested_before_), std::chrono::nanoseconds(0));
    }

  private:
    const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
    const std::chrono::nanoseconds rested_before_ = rested;
};

// Counts a kernel as begun while it exists.
class Begun {
  public:
    explicit Begun(const ExecutionGate* gate) : gate_(gate) {
        if (gate_) ++*gate_->begun;
    }
    ~Begun() {
        if (gate_) ++*gate_->ended;
    }
    Begun(const Begun&) = delete;

  private:
    const ExecutionGate* gate_;
};

}  // namespace

void LaunchState::rest() const {
    static_assert(sizeof *gate_closed == 4, "a futex has 32 bits");
    while (const uint32_t closed = gate_closed->load(std::memory_order_acquire)) {
        if (stop.load(std::memory_order_relaxed) ||
            (launch->cancel && launch->cancel->load(std::memory_order_relaxed)))
            return;
        launch->gate->blocked(launch->gate->argument);
        const RunsNone none;
        const auto begin = std::chrono::steady_clock::now();
        ::syscall(SYS_futex, gate_closed, FUTEX_WAIT, closed, &kRest, nullptr, 0);
        rested += std::chrono::steady_clock::now() - begin;
    }
}

Result run_kernel(const Program& program, const Function& kernel, const Launch& launch, DeviceMemory& memory,
                  int multiprocessors) {
    if (!kernel.lacking.empty()) return {Status::unsupported, kernel.lacking};
    const Dim3 &g = launch.grid, &b = launch.block, &c = launch.cluster;
    const uint64_t threads = b.volume();
    if (!g.x || !g.y || !g.z || g.y > 65535 || g.z > 65535 || g.x > 0x7fffffffu || !threads ||
        threads > kernel.info.max_threads || b.x > 1024 || b.y > 1024 || b.z > 64)
        return {Status::invalid_launch,
                "a grid of (" + std::to_string(g.x) + "," + std::to_string(g.y) + "," + std::to_string(g.z) +
                    ") blocks of (" + std::to_string(b.x) + "," + std::to_string(b.y) + "," +
                    std::to_string(b.z) + ") threads is out of range for '" + kernel.name + "'"};
    if (!c.volume() || g.x % c.x || g.y % c.y || g.z % c.z)
        return {Status::invalid_launch,
                "a grid of (" + std::to_string(g.x) + "," + std::to_string(g.y) + "," + std::to_string(g.z) +
                    ") blocks cannot be cut into clusters of (" + std::to_string(c.x) + "," +
                    std::to_string(c.y) + "," + std::to_string(c.z) + ")"};
    const Begun begun(launch.gate);
    LaunchState state;
    state.gate_closed = launch.gate ? launch.gate->closed : &kAlwaysOpen;
    state.program = &program;
    state.kernel = &kernel;
    state.launch = &launch;
    state.memory = &memory;
    state.multiprocessors = multiprocessors;
    const uint64_t warps = (threads + kLanes - 1) / kLanes;
    if (state.registers_of_a_warp() > kMostBlockRegisters / (warps * c.volume()))
        return {Status::out_of_memory,
                "the registers of a block of " + std::to_string(threads) + " threads of '" + kernel.name +
                    "' take more than the " + std::to_string(kMostBlockRegisters >> 20) +
                    " MiB that the simulated GPU has for them; smaller blocks take less"};
    const LaunchTime time;
    const auto counted = profile::CountedLaunch::begin(kernel, launch);
    const compiler::Code code = compiler::code_for(program, kernel, launch);
    if (!counted)
        state.compiled = code.now, state.awaited = code.later.get();  // to count is the interpreter's
    state.counted = counted.get();
    state.stack_bytes = kernel.stack_bytes;
    state.shared_bytes = launch.dynamic_shared_bytes
                             ? uint64_t{kernel.dynamic_base()} + launch.dynamic_shared_bytes
                             : (kernel.shared_bytes + 15) / 16 * 16;
    state.params.assign(
        static_cast<const char*>(launch.params),
        static_cast<const char*>(launch.params) + (launch.params ? kernel.info.param_bytes : 0));
    state.params.resize(kernel.info.param_bytes);
    if (launch.cooperative) {
        constexpr uint32_t kWorkspace = 64;
        auto workspace = memory.allocate(kWorkspace, DeviceMemory::Account::context);
        if (!workspace)
            return {Status::out_of_memory, "no device memory for the barrier of a cooperative launch"};
        state.workspace = *workspace;
        std::memcpy(reinterpret_cast<void*>(*workspace), &kWorkspace, sizeof kWorkspace);
        // Each must be taken by somebody, or the others wait for ever: the caller alone turns them all over.
        GridParts parts(state.clusters(), 1);
        run_clusters(state, parts, true);
        memory.free(*workspace);
    } else {
        GridParts parts(state.clusters(), thread_count());
        pool().run(static_cast<size_t>(std::min<uint64_t>(state.clusters() - 1, 1024)),
                   [&] { run_clusters(state, parts, false); });
    }
    const auto taken = static_cast<uint64_t>(time.taken().count());
    const bool failed = state.fault.status != Status::ok;
    profile::KernelRow& row = profile::row_of(kernel);
    ++row.launches;
    row.compiled_launches += state.compiled || state.taken_over;
    row.failed += failed;
    row.nanoseconds += taken;
    if (counted) counted->end(taken, failed);
    return {state.fault.status, state.fault.message};
}

Result run_pieces(uint64_t pieces, const std::function<bool(uint64_t piece, char* fault)>& run,
                  const Launch& launch) {
    const Begun begun(launch.gate);
    LaunchState state;
    state.gate_closed = launch.gate ? launch.gate->closed : &kAlwaysOpen;
    state.launch = &launch;
    std::atomic<uint64_t> next{0};
    pool().run(static_cast<size_t>(std::min<uint64_t>(pieces - std::min<uint64_t>(pieces, 1), 1024)), [&] {
        try {
            for (uint64_t piece; (piece = next.fetch_add(1)) < pieces;) {
                const RunsWarps runs;  // so that what is freed meanwhile is given back after this piece
                state.go_on();
                const RunsWarps after_a_pause;
                char text[256] = {};
                if (!run(piece, text)) throw Fault{Status::illegal_address, text};
            }
        } catch (Fault& fault) {
            std::lock_guard lock(state.fault_mutex);
            if (!state.stop.exchange(true)) state.fault = std::move(fault);
        } catch (const std::bad_alloc&) {
            std::lock_guard lock(state.fault_mutex);
            if (!state.stop.exchange(true))
                state.fault = {Status::out_of_memory, "the host has no memory for a simulated library call"};
        }
    });
    return {state.fault.status, state.fault.message};
}

}  // namespace gpukernel::simgpu
