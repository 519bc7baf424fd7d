#include "common/time_slicing.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

namespace gpukernel::worker {

namespace {
constexpr int64_t MS = 1'000'000;  // times are nanoseconds of the machine's monotonic clock
constexpr int64_t BATCH = 4 * MS;  // launched work is waited for about this often, so that a turn can end
// The most launches between two waits.  A program whose kernels were tiny may go on with long ones: the limit
// bounds how long that makes one turn.
constexpr int MOST_AT_ONCE = 64, MOST_AHEAD = 256;
// A turn ends after this long without a launch.  Between a program's wait for a result and its next launch
// some time passes: a participant that has had less than the others keeps its turn through it, or it would
// lose the turn to one that has had more already.
constexpr int64_t LINGER = 300'000, LINGER_BEHIND = 4 * MS;
constexpr int64_t RECENT = 40 * MS;     // a launch this recent means that a participant has work
constexpr int64_t AWAY = 1000 * MS;     // after this long without a launch it returns without credit
constexpr int64_t TOO_LONG = 500 * MS;  // a turn longer than this may be taken away
constexpr int SLOTS = 512;

int64_t now_ns(clockid_t clock = CLOCK_MONOTONIC) {
    timespec now;
    ::clock_gettime(clock, &now);
    return now.tv_sec * 1'000'000'000ll + now.tv_nsec;
}

bool lives(int pid) { return pid && (::kill(pid, 0) == 0 || errno == EPERM); }
}  // namespace

// The table that all participants map.  A slot's own fields are written by its participant, everything else
// under the file's lock.
struct TimeSlicingTable {
    struct alignas(64) Slot {
        std::atomic<int> pid;
        std::atomic<bool> wants, waits;   // wants the turn; waits for its own work
        std::atomic<double> weight, had;  // had: seconds of turns, divided by the weight
        std::atomic<int64_t> last_launch;
    };
    std::atomic<uint32_t> changed;  // a futex: the turn was passed on
    std::atomic<int> holder;        // a slot's number + 1, or 0
    std::atomic<int64_t> began;
    std::atomic<int> used;  // slots above this were never taken
    Slot slots[SLOTS];
};

namespace {
class FileLock {
  public:
    explicit FileLock(int file) : file_(file) {
        // The lock is held for microseconds.  In direct mode users' programs hold it, too, and one that is
        // stopped meanwhile must not stop all others: after a while they go on without it, and check what
        // they read.
        for (int tries = 0; ::flock(file_, LOCK_EX | LOCK_NB) != 0 && tries < 100; ++tries)
            std::this_thread::sleep_for(std::chrono::nanoseconds(tries < 50 ? 20'000 : MS));
    }
    ~FileLock() { ::flock(file_, LOCK_UN); }

  private:
    int file_;
};
}  // namespace

bool TimeSlicing::open(const std::string& path, std::function<CUresult()> wait,
                       const std::function<void()>& enter, std::atomic<CUresult>& error) {
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file_ < 0) return false;
    FileLock lock(file_);
    if (::ftruncate(file_, sizeof(TimeSlicingTable)) != 0) return false;
    void* memory = ::mmap(nullptr, sizeof(TimeSlicingTable), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (memory == MAP_FAILED) return false;
    auto* table = static_cast<TimeSlicingTable*>(memory);  // zeroes are an empty table
    for (int i = 0; i < SLOTS && mine_ < 0; ++i)
        if (const int pid = table->slots[i].pid; pid == ::getpid() || !lives(pid)) mine_ = i;
    if (mine_ < 0) return false;
    TimeSlicingTable::Slot& slot = table->slots[mine_];
    if (table->holder == mine_ + 1) table->holder = 0;
    slot.wants = slot.waits = false, slot.had = 0, slot.last_launch = 0, slot.weight = double(weight_);
    slot.pid = ::getpid();
    table->used = std::max<int>(table->used, mine_ + 1);
    wait_ = std::move(wait), error_ = &error;
    table_ = table;
    std::thread([this, enter] {
        enter();
        give_when_idle();
    }).detach();
    return true;
}

void TimeSlicing::set_weight(double weight) {
    weight_ = std::max(weight, 1e-6);
    if (table_) table_->slots[mine_].weight = double(weight_);
}

bool TimeSlicing::others_work(int64_t now) {
    if (now - asked_others_.load(std::memory_order_relaxed) < MS)
        return others_.load(std::memory_order_relaxed);
    asked_others_.store(now, std::memory_order_relaxed);
    bool others = false;
    for (int i = 0, used = std::min<int>(table_->used, SLOTS); i < used && !others; ++i)
        others = i != mine_ && (now - table_->slots[i].last_launch < RECENT || table_->slots[i].wants ||
                                (table_->slots[i].waits && lives(table_->slots[i].pid)));
    others_.store(others, std::memory_order_relaxed);
    return others;
}

bool TimeSlicing::contended() {
    if (!table_ || ended_.load(std::memory_order_relaxed)) return false;
    const int64_t now =
        now_ns(CLOCK_MONOTONIC_COARSE);  // a third of the cost; some milliseconds are exact enough
    table_->slots[mine_].last_launch.store(now, std::memory_order_relaxed);
    return others_work(now);
}

void TimeSlicing::before_launch() {
    if (!table_ || ended_) return;
    const int64_t now = now_ns();
    std::unique_lock lock(mutex_);
    table_->slots[mine_].last_launch.store(now, std::memory_order_relaxed);
    if (!others_work(now)) {
        // Alone, but at most some turns' worth ahead of the device: the next participant has to wait for all
        // of it.
        if (launched_ >= std::min(8 * most_launched_, MOST_AHEAD)) {
            table_->slots[mine_].waits = true;
            wait_for_device();
            table_->slots[mine_].waits = false;
        }
        ++launched_;
        return;
    }
    // A program that waits for its work after every few launches never has many outstanding: its turn ends by
    // time.
    if (has_turn_ && (launched_ >= most_launched_ || (now - began_ >= BATCH && others_deserve_it()))) {
        wait_for_device();
        // Passed on to nobody, the turn might go to one that has had more before it is acquired again.
        if (table_->holder != mine_ + 1 || others_deserve_it()) give();
    }
    if (!has_turn_) take();
    ++launched_;
}

// Whether one that has had less for its weight than this participant waits for the turn.
bool TimeSlicing::others_deserve_it() const {
    const TimeSlicingTable::Slot& me = table_->slots[mine_];
    const double had = me.had + double(now_ns() - began_) / 1e9 / me.weight;
    for (int i = 0, used = std::min<int>(table_->used, SLOTS); i < used; ++i)
        if (i != mine_ && table_->slots[i].wants && table_->slots[i].had < had) return true;
    return false;
}

// Waits for what was launched, and measures how many launches take BATCH.
void TimeSlicing::wait_for_device() {
    const int64_t start = std::max(began_, last_wait_);
    const CUresult result = wait_();
    if (result != CUDA_SUCCESS) *error_ = result;
    last_wait_ = now_ns();
    if (launched_)
        most_launched_ = std::clamp<int64_t>(BATCH / std::max<int64_t>(1, (last_wait_ - start) / launched_),
                                             1, 4 * int64_t(most_launched_));
    most_launched_ = std::min(most_launched_, MOST_AT_ONCE);
    launched_ = 0;
}

void TimeSlicing::take() {
    TimeSlicingTable::Slot& me = table_->slots[mine_];
    const int64_t start = now_ns();
    bool first = true;
    for (;;) {
        uint32_t seen;
        {
            FileLock file(file_);
            const int64_t now = now_ns();
            double least = -1;    // `had` of the others that have work
            bool is_next = true;  // no other that wants the turn has had less
            for (int i = 0, used = std::min<int>(table_->used, SLOTS); i < used; ++i) {
                TimeSlicingTable::Slot& other = table_->slots[i];
                if (i == mine_ || !other.pid) continue;
                const bool wants = other.wants;
                if (wants && !lives(other.pid)) {
                    other.wants = false, other.pid = 0;
                    continue;
                }
                if (now - other.last_launch < AWAY || wants)
                    least = least < 0 ? double(other.had) : std::min<double>(least, other.had);
                if (wants && other.had < me.had) is_next = false;
            }
            if (first && me.had < least && start - gave_ > AWAY) me.had = least;  // no time saved up
            first = false;
            me.wants = true;
            const int holder = table_->holder;
            const bool free =
                holder < 1 || holder > SLOTS || holder == mine_ + 1 || !lives(table_->slots[holder - 1].pid);
            const bool lost = now - table_->began > TOO_LONG && now - start > TOO_LONG;
            if ((free && is_next) || lost || now - start > 20 * TOO_LONG) {
                table_->holder = mine_ + 1;
                table_->began = now;
                me.wants = false;
                has_turn_ = true;
                began_ = last_wait_ = now;
                launched_ = 0;
                taken_.notify_one();
                return;
            }
            seen = table_->changed;
        }
        const timespec moment{0, 10 * MS};
        ::syscall(SYS_futex, &table_->changed, FUTEX_WAIT, seen, &moment, nullptr, 0);
    }
}

void TimeSlicing::give() {
    wait_for_device();
    TimeSlicingTable::Slot& me = table_->slots[mine_];
    gave_ = now_ns();
    me.had = me.had + double(gave_ - began_) / 1e9 / me.weight;
    seconds_ = seconds_ + double(gave_ - began_) / 1e9;
    has_turn_ = false;
    {
        FileLock file(file_);
        if (table_->holder == mine_ + 1) table_->holder = 0;
        ++table_->changed;
    }
    ::syscall(SYS_futex, &table_->changed, FUTEX_WAKE, SLOTS, nullptr, nullptr, 0);
}

void TimeSlicing::end() {
    if (!table_) return;
    std::unique_lock lock(mutex_);
    if (has_turn_) give();
    ended_ = true;
    table_->slots[mine_].last_launch = 0;
    taken_.notify_all();
}

// Passes the turn on when the program that holds it does something else.
void TimeSlicing::give_when_idle() {
    std::unique_lock lock(mutex_);
    for (;;) {
        taken_.wait(lock, [&] { return has_turn_ || ended_; });
        if (ended_) return;
        const int64_t launched = table_->slots[mine_].last_launch;
        if (launched_ && now_ns() - launched > LINGER) wait_for_device();
        const int64_t idle = now_ns() - std::max(launched, last_wait_);
        if (!launched_ && (idle > LINGER_BEHIND || (idle > LINGER && others_deserve_it()))) {
            give();
            continue;
        }
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::nanoseconds(LINGER));
        lock.lock();
    }
}

}  // namespace gpukernel::worker
