#include "common/time_slicing.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "common/time_slicing_table.h"

namespace gpukernel::worker {

namespace {
// The most launches between two waits.  A program whose kernels were tiny may go on with long ones: the limit
// bounds how long that makes one turn.
constexpr int MOST_AT_ONCE = 64, MOST_AHEAD = 256;
constexpr int64_t AWAY = 1000 * MS;     // after this long without a launch it returns without credit
constexpr int64_t TOO_LONG = 500 * MS;  // a turn longer than this may be taken away
// Where kernels can be paused, whoever comes back from whatever pause has this much credit, in device time.
constexpr double CREDIT = 0.1;
// The most that a restart carries over of what was had, in seconds of device time.
constexpr double MOST_CARRIED = 1;
}  // namespace

bool TimeSlicing::prepare(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return false;
    struct stat status{};
    const bool made =
        ::fstat(file, &status) == 0 && (status.st_size >= static_cast<off_t>(sizeof(TimeSlicingTable)) ||
                                        ::ftruncate(file, sizeof(TimeSlicingTable)) == 0);
    ::close(file);
    return made;
}

bool TimeSlicing::open(const std::string& path, std::function<CUresult()> wait,
                       const std::function<void()>& enter, std::atomic<CUresult>& error,
                       const std::function<bool(const ExecutionGate&)>& set_gate) {
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file_ < 0) return false;
    FileLock lock(file_);
    struct stat status{};  // a confined worker may not change the file's size
    if (::fstat(file_, &status) != 0 || (status.st_size < static_cast<off_t>(sizeof(TimeSlicingTable)) &&
                                         ::ftruncate(file_, sizeof(TimeSlicingTable)) != 0))
        return false;
    void* memory = ::mmap(nullptr, sizeof(TimeSlicingTable), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (memory == MAP_FAILED) return false;
    auto* table = static_cast<TimeSlicingTable*>(memory);  // zeroes are an empty table
    // A worker that executed itself anew finds its own slot, and what it has had: a restart is no new
    // beginning.
    for (int i = 0; i < table->slots_used() && mine_ < 0; ++i)
        if (table->slots[i].pid == ::getpid()) mine_ = i;
    const bool again = mine_ >= 0;
    for (int i = 0; i < TimeSlicingTable::SLOTS && mine_ < 0; ++i)
        if (!lives(table->slots[i].pid)) mine_ = i;
    if (mine_ < 0) return false;
    TimeSlicingSlot& slot = table->slots[mine_];
    slot.weight = double(weight_);
    if (!again) slot.had = 0;
    if (table->holder == mine_ + 1) {
        slot.had = slot.had + std::max(0.0, double(now_ns() - table->began) / 1e9 / slot.weight);
        table->holder = 0;
    }
    slot.had = std::min<double>(slot.had, table->level + MOST_CARRIED / slot.weight);
    slot.wants = slot.waits = slot.has_gate = false, slot.last_launch = 0;
    slot.heard = 0, slot.closed = 0, slot.begun = 0, slot.ended = 0;
    slot.pid = ::getpid();
    table->used = std::max<int>(table->used, mine_ + 1);
    wait_ = std::move(wait), error_ = &error;
    table_ = table;
    if (set_gate && use_gate(set_gate)) return true;
    std::thread([this, enter] {
        enter();
        give_when_idle();
    }).detach();
    return true;
}

TimeSlicingSlot& TimeSlicing::mine() const { return table_->slots[mine_]; }

void TimeSlicing::set_weight(double weight) {
    weight_ = std::max(weight, 1e-6);
    if (table_) mine().weight = double(weight_);
}

bool TimeSlicing::others_work(int64_t now) {
    if (now - asked_others_.load(std::memory_order_relaxed) < MS)
        return others_.load(std::memory_order_relaxed);
    asked_others_.store(now, std::memory_order_relaxed);
    bool others = false;
    for (int i = 0, used = table_->slots_used(); i < used && !others; ++i) {
        if (i == mine_) continue;
        const TimeSlicingSlot& other = table_->slots[i];
        const int64_t seen = now - other.last_launch;
        others = seen < RECENT || (other.wants && !other.silent(now)) || (other.waits && lives(other.pid)) ||
                 (other.runs() && seen < AWAY && lives(other.pid));
    }
    others_.store(others, std::memory_order_relaxed);
    return others;
}

bool TimeSlicing::contended() {
    if (!table_ || ended_.load(std::memory_order_relaxed)) return false;
    const int64_t now =
        now_ns(CLOCK_MONOTONIC_COARSE);  // a third of the cost; some milliseconds are exact enough
    mine().last_launch.store(now, std::memory_order_relaxed);
    return others_work(now);
}

void TimeSlicing::before_launch() {
    if (!table_ || ended_) return;
    if (has_gate_) return close_where_contended();
    const int64_t now = now_ns();
    std::unique_lock lock(mutex_);
    mine().last_launch.store(now, std::memory_order_relaxed);
    if (!others_work(now)) {
        // Alone, but at most some turns' worth ahead of the device: the next participant has to wait for all
        // of it.
        if (launched_ >= std::min(8 * most_launched_, MOST_AHEAD)) {
            mine().waits = true;
            wait_for_device();
            mine().waits = false;
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
    const TimeSlicingSlot& me = mine();
    const int64_t now = now_ns();
    const double had = me.had + double(now - began_) / 1e9 / me.weight;
    for (int i = 0, used = table_->slots_used(); i < used; ++i)
        if (i != mine_ && table_->slots[i].wants && table_->slots[i].had < had &&
            !table_->slots[i].silent(now))
            return true;
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
    const int64_t start = now_ns();
    uint32_t seen;
    for (bool first = true; !try_take(start, first, seen); first = false) wait_for_change(seen);
    taken_.notify_one();
}

void TimeSlicing::wait_for_change(uint32_t seen) {
    const timespec moment{0, 10 * MS};
    ::syscall(SYS_futex, &table_->changed, FUTEX_WAIT, seen, &moment, nullptr, 0);
}

// Takes the turn where it is this participant's to take, and says that it is wanted where it is not. `start`:
// since when it waits.
bool TimeSlicing::try_take(int64_t start, bool first, uint32_t& seen) {
    TimeSlicingSlot& me = mine();
    FileLock file(file_);
    const int64_t now = now_ns();
    double least = -1;    // `had` of the others that have work
    bool is_next = true;  // no other that wants the turn has had less
    for (int i = 0, used = table_->slots_used(); i < used; ++i) {
        TimeSlicingSlot& other = table_->slots[i];
        if (i == mine_ || !other.pid) continue;
        if (other.wants && !lives(other.pid)) {
            other.wants = false, other.pid = 0;
            continue;
        }
        const bool wants = other.wants && !other.silent(now);
        if (now - other.last_launch < AWAY || wants)
            least = least < 0 ? double(other.had) : std::min<double>(least, other.had);
        if (wants && other.had < me.had) is_next = false;
    }
    // No time is saved up.
    if (first && has_gate_) me.had = std::max(me.had.load(), table_->level - CREDIT / me.weight);
    if (first && !has_gate_ && me.had < least && start - gave_ > AWAY) me.had = least;
    me.heard = now, me.wants = true;
    seen = table_->changed;
    const int holder = table_->holder;
    TimeSlicingSlot* const other = holder < 1 || holder > TimeSlicingTable::SLOTS || holder == mine_ + 1
                                       ? nullptr
                                       : &table_->slots[holder - 1];
    if (!other || !lives(other->pid)) {
        if (!is_next && now - start <= 20 * TOO_LONG) return false;
    } else if (other->has_gate) {
        // It ends its turns by itself, unless it is stopped.
        if (!other->silent(now)) return false;
        other->had = other->had + double(now - table_->began) / 1e9 / other->weight;
    } else {
        const bool lost = now - table_->began > TOO_LONG && now - start > TOO_LONG;
        if (!lost && now - start <= 20 * TOO_LONG) return false;
    }
    table_->holder = mine_ + 1;
    table_->began = now;
    table_->level = std::max(table_->level.load(), me.had.load());
    for (int i = 0, used = table_->slots_used(); i < used; ++i)
        if (i != mine_ && !table_->slots[i].closed) table_->slots[i].closed = 1;
    if (has_gate_) open_gate();
    me.wants = false;
    has_turn_ = true;
    began_ = last_wait_ = now;
    launched_ = 0;
    return true;
}

void TimeSlicing::give(bool keep_open) {
    if (!has_gate_) wait_for_device();
    TimeSlicingSlot& me = mine();
    gave_ = now_ns();
    const double had = double(gave_ - began_) / 1e9;
    seconds_ = seconds_ + had;
    has_turn_ = false;
    {
        FileLock file(file_);
        const bool kept = table_->holder == mine_ + 1;
        // Whoever took the turn away from one with a gate has charged it, and closed the gate.
        if (kept || !has_gate_) me.had = me.had + had / me.weight;
        if (kept) table_->holder = 0;
        if (kept && has_gate_ && !keep_open) me.closed = 1;
        me.heard = 0;
        ++table_->changed;
    }
    ::syscall(SYS_futex, &table_->changed, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void TimeSlicing::end() {
    if (!table_) return;
    std::unique_lock lock(mutex_);
    if (has_turn_) give();
    ended_ = true;
    mine().last_launch = 0;
    if (has_gate_) open_gate();
    taken_.notify_all();
}

// Passes the turn on when the program that holds it does something else.
void TimeSlicing::give_when_idle() {
    std::unique_lock lock(mutex_);
    for (;;) {
        taken_.wait(lock, [&] { return has_turn_ || ended_; });
        if (ended_) return;
        const int64_t launched = mine().last_launch;
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
