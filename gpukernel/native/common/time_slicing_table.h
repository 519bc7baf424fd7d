// The table of a device's time slicing: what its participants share, and the lock around it.
#pragma once

#include <signal.h>
#include <sys/file.h>
#include <time.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <thread>

namespace gpukernel::worker {

constexpr int64_t MS = 1'000'000;  // times are nanoseconds of the machine's monotonic clock
constexpr int64_t BATCH = 4 * MS;  // launched work is waited for about this often, so that a turn can end
// A turn ends after this long without a launch.  Between a program's wait for a result and its next launch
// some time passes: a participant that has had less than the others keeps its turn through it, or it would
// lose the turn to one that has had more already.
constexpr int64_t LINGER = 300'000, LINGER_BEHIND = 4 * MS;
constexpr int64_t RECENT = 40 * MS;  // a launch this recent means that a participant has work
// After this long without a sign a participant is taken for stopped: it stands in nobody's way, and loses the
// turn.
constexpr int64_t SILENT = 250 * MS;

inline int64_t now_ns(clockid_t clock = CLOCK_MONOTONIC) {
    timespec now;
    ::clock_gettime(clock, &now);
    return now.tv_sec * 1'000'000'000ll + now.tv_nsec;
}

inline bool lives(int pid) { return pid && (::kill(pid, 0) == 0 || errno == EPERM); }

// A participant's own fields are written by itself, but for these: whoever takes the turn closes the gates of
// the others, and charges one that it took the turn away from.  Version 0.2 ends with `last_launch`.
struct alignas(64) TimeSlicingSlot {
    std::atomic<int> pid;
    std::atomic<bool> wants, waits;      // wants the turn; waits for its own work
    std::atomic<bool> has_gate;          // its device can be paused
    std::atomic<double> weight, had;     // had: seconds of turns, divided by the weight
    std::atomic<int64_t> last_launch;    // or when a kernel was last seen to run
    std::atomic<int64_t> heard;          // its sign, while it wants the turn or has it; 0: it gives none
    std::atomic<uint32_t> closed;        // of its gate
    std::atomic<uint32_t> begun, ended;  // kernels of a device with a gate
    bool runs() const { return begun != ended; }  // or rests in the middle of a kernel
    // Whether it is stopped, or its process was never scheduled.
    bool silent(int64_t now) const { return heard && now - heard > SILENT; }
};

// The table that all participants map, zeroes at first.  Everything but a slot's own fields is written under
// the file's lock.
struct TimeSlicingTable {
    static constexpr int SLOTS = 512;
    std::atomic<uint32_t> changed;  // a futex: the turn was passed on
    std::atomic<int> holder;        // a slot's number + 1, or 0
    std::atomic<int64_t> began;
    std::atomic<int> used;      // slots above this were never taken
    std::atomic<double> level;  // the most that a participant had had when it took the turn
    TimeSlicingSlot slots[SLOTS];

    int slots_used() const {
        const int count = used;
        return count < 0 ? 0 : count > SLOTS ? SLOTS : count;
    }
};

class FileLock {
  public:
    explicit FileLock(int file) : file_(file) {
        // The lock is held for microseconds.  A process that is stopped meanwhile must not stop all others:
        // after a while they go on without it, check what they read, and wait less the next time.
        for (int tries = 0; ::flock(file_, LOCK_EX | LOCK_NB) != 0; ++tries) {
            if (tries >= patience_) {
                patience_ = IMPATIENT;
                return;
            }
            std::this_thread::sleep_for(std::chrono::nanoseconds(tries < 50 ? 20'000 : MS));
        }
        patience_ = PATIENT;
    }
    ~FileLock() { ::flock(file_, LOCK_UN); }
    FileLock(const FileLock&) = delete;

  private:
    static constexpr int PATIENT = 100, IMPATIENT = 10;  // tries
    static inline std::atomic<int> patience_{PATIENT};
    int file_;
};

}  // namespace gpukernel::worker
