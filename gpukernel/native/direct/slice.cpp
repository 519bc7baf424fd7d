#include "direct/slice.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "direct/process.h"

namespace gpukernel::direct {

namespace {
int64_t now_ns() {
    timespec now;
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec * 1'000'000'000ll + now.tv_nsec;
}

// A lock over the slice's table, which ends with the scope or with this process.
class TableLock {
  public:
    explicit TableLock(int file) : file_(file) {
        while (::flock(file_, LOCK_EX) != 0 && errno == EINTR) {
        }
    }
    ~TableLock() { ::flock(file_, LOCK_UN); }

  private:
    int file_;
};
}  // namespace

bool Slice::open(const std::string& directory, std::string& error) {
    path_ = directory + "/table";
    file_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
    if (file_ < 0) {
        error = path_ + " cannot be opened (" + std::strerror(errno) +
                "): direct mode needs a program on the GPU server itself, by the user who holds the slice";
        return false;
    }
    struct stat status;
    void* memory = MAP_FAILED;
    if (::fstat(file_, &status) == 0 && status.st_size >= off_t(sizeof(wire::SliceTable)))
        memory = ::mmap(nullptr, sizeof(wire::SliceTable), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (memory != MAP_FAILED) table_ = static_cast<wire::SliceTable*>(memory);
    if (!table_ || table_->magic != wire::SliceTable::MAGIC || table_->version != wire::SliceTable::VERSION) {
        error = path_ + " is not a slice of this version of gpukernel";
        return false;
    }
    return true;
}

bool Slice::join(std::string& error) {
    if (ended()) {
        error = "the lease of this slice is over";
        return false;
    }
    const ProcessIdentity self = this_process();
    for (bool tidied : {false, true}) {
        for (unsigned i = 0; i < wire::SliceTable::SLOTS; ++i) {
            wire::ProgramSlot& slot = table_->slots[i];
            int32_t none = 0;
            if (!slot.pid.compare_exchange_strong(none, self.pid)) continue;
            slot.start = self.start, slot.pid_namespace = self.pid_namespace;
            slot.counted = 0, slot.overhead = 0, slot.launches = 0, slot.last_launch = now_ns();
            std::memset(slot.command, 0, sizeof slot.command);
            std::ifstream("/proc/self/cmdline").read(slot.command, sizeof slot.command - 1);
            for (uint32_t used = table_->used_slots;
                 used <= i && !table_->used_slots.compare_exchange_weak(used, i + 1);) {
            }
            mine_ = &slot;
            return true;
        }
        if (tidied) break;
        TableLock lock(file_);
        free_slots_of_the_dead();
    }
    error = "more programs use this slice than there is room for in its table";
    return false;
}

// --- the cap ---

uint64_t Slice::used() const {
    uint64_t sum = 0;
    for (uint32_t i = 0, end = std::min<uint32_t>(table_->used_slots, wire::SliceTable::SLOTS); i < end;
         ++i) {
        const wire::ProgramSlot& slot = table_->slots[i];
        if (slot.pid) sum += slot.counted + slot.overhead;
    }
    return sum;
}

bool Slice::try_reserve(uint64_t bytes) {
    const uint64_t limit = this->limit();
    if (bytes > limit) return false;
    mine_->counted += bytes;
    const uint64_t used = this->used();  // of two that take the last bytes at once, at least one sees both
    if (used > limit) {
        give_back(bytes);
        return false;
    }
    for (uint64_t peak = table_->peak; used > peak && !table_->peak.compare_exchange_weak(peak, used);) {
    }
    return true;
}

bool Slice::reserve(uint64_t bytes) {
    if (ended()) return false;
    if (try_reserve(bytes)) return true;
    tidy();
    std::lock_guard lock(mutex_);
    TableLock file(file_);  // so that of two that failed for each other's sake one succeeds
    return try_reserve(bytes);
}

void Slice::give_back(uint64_t bytes) {
    for (uint64_t now = mine_->counted;
         !mine_->counted.compare_exchange_weak(now, now - std::min(now, bytes));) {
    }
}

void Slice::count(uint64_t bytes) { mine_->counted += bytes; }

void Slice::add_overhead(int64_t bytes) {
    for (uint64_t now = mine_->overhead;;) {
        const uint64_t then = bytes < 0 ? now - std::min<uint64_t>(now, -bytes) : now + bytes;
        if (mine_->overhead.compare_exchange_weak(now, then)) break;
    }
}

bool Slice::measure() {
    const uint64_t counted = mine_->counted;
    const auto bytes = bytes_by_nvml(table_->facts.uuid);
    if (!bytes) return false;
    mine_->overhead = *bytes - std::min(*bytes, counted);
    return true;
}

void Slice::tidy() {
    settle_pools();
    std::lock_guard lock(mutex_);
    TableLock file(file_);
    free_slots_of_the_dead();
}

void Slice::free_slots_of_the_dead() {
    for (uint32_t i = 0, end = std::min<uint32_t>(table_->used_slots, wire::SliceTable::SLOTS); i < end;
         ++i) {
        wire::ProgramSlot& slot = table_->slots[i];
        if (&slot == mine_ || !slot.pid) continue;
        if (lives({slot.pid, slot.start, slot.pid_namespace})) continue;
        table_->past_launches += slot.launches;
        slot.counted = 0, slot.overhead = 0, slot.launches = 0;
        slot.pid = 0;
    }
}

void Slice::settle_pools() {
    Inside inside;
    std::lock_guard lock(pools_mutex);
    pools_changed = false;
    for (auto& [pool, charged] : pools) {
        cuuint64_t reserved = 0;
        if (real.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) != CUDA_SUCCESS)
            continue;
        if (reserved > charged) count(reserved - charged);
        if (reserved < charged) give_back(charged - reserved);
        charged = reserved;
    }
}

// --- time slicing ---

bool Slice::capturing(CUstream stream, bool per_thread) {
    auto status = CU_STREAM_CAPTURE_STATUS_NONE;
    const auto ask = per_thread ? real.cuStreamIsCapturing_ptsz : real.cuStreamIsCapturing;
    const CUresult result = ask(stream, &status);
    // The legacy stream cannot be asked while another captures; a driver that lacks the call captures
    // nothing.
    return result == CUDA_SUCCESS ? status != CU_STREAM_CAPTURE_STATUS_NONE
                                  : result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

void Slice::open_time_slicing() {
    std::lock_guard lock(mutex_);
    if (time_slicing_opened_) return;
    if (table_->time_slicing_file[0] && real.cuCtxGetCurrent(&context_) == CUDA_SUCCESS && context_) {
        time_slicing_.set_weight(table_->weight);
        has_time_slicing_ = time_slicing_.open(
            table_->time_slicing_file, [this] { return wait_for_launched(); },
            [this] { real.cuCtxSetCurrent(context_); }, stray_error_);
        // Registered after the driver's own, so it runs before them.  A forked child has no turn to give.
        static std::vector<Slice*> time_sliced;
        static const pid_t self = ::getpid();
        if (time_sliced.empty())
            std::atexit([] {
                if (::getpid() == self)
                    for (Slice* slice : time_sliced) slice->time_slicing_.end();
            });
        if (has_time_slicing_) time_sliced.push_back(this);
    }
    time_slicing_opened_ = true;
}

void Slice::before_launch(CUstream stream, bool per_thread) {
    mine_->launches.fetch_add(1, std::memory_order_relaxed);
    mine_->last_launch.store(now_ns(), std::memory_order_relaxed);
    if (!time_slicing_opened_.load(std::memory_order_acquire)) open_time_slicing();
    if (!has_time_slicing_ || !time_slicing_.contended() || capturing(stream, per_thread)) return;
    Inside inside;
    time_slicing_.set_weight(table_->weight);  // the slice may have been resized
    time_slicing_.before_launch();
}

// While others want the device too, an event after each launch, so that a turn can end: a wait for the whole
// context would end the capture of a stream.
void Slice::after_launch(CUstream stream, bool per_thread) {
    if (!has_time_slicing_ || !time_slicing_.has_turn() || capturing(stream, per_thread)) return;
    std::lock_guard lock(launched_mutex_);
    auto known = std::find_if(launched_.begin(), launched_.end(), [&](const Launched& l) {
        return l.stream == stream && l.per_thread == per_thread;
    });
    if (known == launched_.end() || (per_thread && (!stream || stream == CU_STREAM_PER_THREAD))) {
        // An event of a stream that has nothing left to wait for serves the next stream.
        known =
            std::find_if(launched_.begin(), launched_.end(), [](const Launched& l) { return !l.waiting; });
        if (known == launched_.end()) {
            CUevent event;
            if (real.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return;
            known = launched_.insert(launched_.end(), Launched{});
            known->event = event;
        }
    }
    known->stream = stream, known->per_thread = per_thread;
    const auto record = per_thread ? real.cuEventRecord_ptsz : real.cuEventRecord;
    known->waiting = record(known->event, stream) == CUDA_SUCCESS;
}

CUresult Slice::wait_for_launched() {
    Inside inside;
    std::lock_guard lock(launched_mutex_);
    auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;  // whatever other threads capture
    real.cuThreadExchangeStreamCaptureMode(&mode);
    CUresult result = CUDA_SUCCESS;
    for (Launched& launched : launched_)
        if (std::exchange(launched.waiting, false))
            if (CUresult error = real.cuEventSynchronize(launched.event); error != CUDA_SUCCESS)
                result = error;
    real.cuThreadExchangeStreamCaptureMode(&mode);
    return result;
}

}  // namespace gpukernel::direct
