// Turns of a device whose kernels can be paused.
//
// The gate is open while nobody else has work, and while this participant has the turn.  A kernel that finds
// it closed rests and asks for the turn; a thread takes the turn, watches it, and ends it by time or when
// nothing runs any more.  Whoever takes the turn closes all other gates, so that a kernel that has the device
// to itself needs no thread beside it that looks out for others.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "common/time_slicing.h"
#include "common/time_slicing_table.h"

namespace gpukernel::worker {

bool TimeSlicing::use_gate(const std::function<bool(const ExecutionGate&)>& set_gate) {
    const auto blocked = [](void* self) { static_cast<TimeSlicing*>(self)->request_turn(); };
    const auto running = [](void* self) { static_cast<TimeSlicing*>(self)->close_where_contended(); };
    has_gate_ = set_gate({&mine().closed, &mine().begun, &mine().ended, blocked, running, this});
    if (!has_gate_) return false;
    mine().has_gate = true;
    std::thread([this] { give_by_time(); }).detach();
    return true;
}

void TimeSlicing::open_gate() {
    if (!mine().closed.exchange(0)) return;
    ::syscall(SYS_futex, &mine().closed, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void TimeSlicing::close_where_contended() {
    if (!contended() || has_turn() || mine().closed.load(std::memory_order_relaxed)) return;
    std::lock_guard lock(mutex_);
    FileLock file(file_);
    if (table_->holder != mine_ + 1 && !ended_) mine().closed = 1;
}

// A kernel rests.
void TimeSlicing::request_turn() {
    std::lock_guard lock(mutex_);
    if (ended_) return open_gate();
    if (!mine().closed) return;
    requested_ = true;
    taken_.notify_one();
}

// Whether the turn must end, because others deserve it or nothing has run for a while.
bool TimeSlicing::turn_is_over(int64_t now, int64_t& last_ran) {
    if (table_->holder != mine_ + 1) return true;  // it was taken away
    const bool wanted = others_deserve_it();
    if (const uint32_t begun = mine().begun; begun != begun_ || mine().runs()) begun_ = begun, last_ran = now;
    if (wanted && now - began_ >= BATCH) return true;
    return now - last_ran > (wanted ? LINGER : LINGER_BEHIND);
}

void TimeSlicing::give_by_time() {
    std::unique_lock lock(mutex_);
    while (!ended_) {
        taken_.wait(lock, [&] { return requested_ || ended_; });
        requested_ = false;
        const int64_t start = now_ns();
        uint32_t seen;
        bool took = false;
        for (bool first = true; !ended_ && mine().runs() && !(took = try_take(start, first, seen));
             first = false) {
            lock.unlock();
            wait_for_change(seen);
            lock.lock();
        }
        paused_seconds_ = paused_seconds_ + double(now_ns() - start) / 1e9;
        mine().wants = false;
        if (!took) continue;
        bool alone = false;
        int64_t last_ran = began_;
        for (int64_t now = began_; !ended_ && !turn_is_over(now, last_ran); now = now_ns()) {
            mine().heard = now;
            if (mine().runs()) mine().last_launch = now;
            // Alone, it needs no turn, and is not charged.
            if ((alone = !others_work(now))) break;
            lock.unlock();
            std::this_thread::sleep_for(std::chrono::nanoseconds(mine().runs() ? MS : LINGER));
            lock.lock();
        }
        give(alone || ended_);
        requested_ = mine().runs() && mine().closed;
    }
}

}  // namespace gpukernel::worker
