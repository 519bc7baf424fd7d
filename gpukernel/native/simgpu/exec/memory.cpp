// Device memory: one reserved range of host addresses, committed on first touch, cut into live allocations.
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "simgpu/exec/address_space.h"
#include "simgpu/exec/kernel_threads.h"

namespace gpukernel::simgpu {
namespace {

constexpr uint64_t kGrain = DeviceMemory::GRANULE;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kLarge = 2u << 20;  // what is as large begins in a unit of its own, which may be one page
// What is larger still begins a few steps behind the unit's start: elements of one index of several arrays
// lie in different sets of the caches.
constexpr uint64_t kLarger = 2 * kLarge, kStep = 9 * 512, kSteps = 8;
constexpr uint64_t kOwnHeap = 8u << 20;  // of the heap is the context's own
constexpr int kHeapLimit = 2;            // CU_LIMIT_MALLOC_HEAP_SIZE
uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

class ReservedMemory final : public DeviceMemory {
  public:
    explicit ReservedMemory(size_t capacity) : capacity_(capacity) {
        // Four times the capacity, so that neither fragmentation nor alignment refuses what the books allow;
        // less where address space is limited.
        for (reserved_ = round_up(capacity, kPage) * 4 + (64u << 20); reserved_ >= capacity; reserved_ /= 2) {
            void* at = mmap(nullptr, reserved_, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (at == MAP_FAILED) continue;
            base_ = reinterpret_cast<uint64_t>(at);
            madvise(at, reserved_, MADV_DONTDUMP);
            gaps_[base_] = reserved_;
            return;
        }
        reserved_ = 0;
    }
    ~ReservedMemory() override {
        if (reserved_) munmap(reinterpret_cast<void*>(base_), reserved_);
    }

    std::optional<uint64_t> allocate(size_t bytes, Account account) override {
        if (bytes == 0 || bytes > capacity_) return std::nullopt;
        uint64_t room = round_up(bytes, kGrain);
        const bool counted = account == Account::programs;
        std::unique_lock lock(mutex_);
        if (counted && room > capacity_ - std::min<uint64_t>(used_, capacity_)) return std::nullopt;
        for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
            const uint64_t unit = round_up(gap->first, kLarge);
            const uint64_t behind = room < kLarger ? 0 : allocations_ % kSteps * kStep;
            const uint64_t address = room < kLarge ? gap->first : unit + behind;
            const uint64_t before = address - gap->first;
            if (gap->second < before || gap->second - before < room) continue;
            const uint64_t left = gap->second - before - room;
            if (before)
                gap->second = before;
            else
                gaps_.erase(gap);
            if (left) gaps_[address + room] = left;
            live_[address] = {bytes, ++allocations_, counted};
            if (counted) count(used_ + room);
            lock.unlock();
            if (room >= kLarge) advise(unit, behind + room);
            return address;
        }
        return std::nullopt;
    }

    bool free(uint64_t address) override {
        std::unique_lock lock(mutex_);
        auto it = live_.find(address);
        if (it == live_.end()) return false;
        uint64_t room = round_up(it->second.bytes, kGrain);
        const bool counted = it->second.counted;
        live_.erase(it);
        lock.unlock();
        forget_allocations();  // or a kernel that still runs would have pages there that nobody counts
        clear(address, room);
        lock.lock();
        if (counted) count(used_ - room);
        auto next = gaps_.lower_bound(address);
        if (next != gaps_.end() && next->first == address + room) {
            room += next->second;
            next = gaps_.erase(next);
        }
        if (next != gaps_.begin()) {
            auto before = std::prev(next);
            if (before->first + before->second == address) {
                before->second += room;
                return true;
            }
        }
        gaps_[address] = room;
        return true;
    }

    std::optional<uint64_t> allocate_heap(size_t bytes) override {
        std::lock_guard lock(heap_mutex_);
        if (bytes > heap_limit_) return std::nullopt;
        const uint64_t room = round_up(bytes, kGrain);
        if (room > heap_limit_ || heap_used_ > heap_limit_ - room) return std::nullopt;
        auto address = allocate(bytes, Account::context);
        if (address) heap_[*address] = room, heap_used_ += room, recount_heap();
        return address;
    }
    bool free_heap(uint64_t address) override {
        std::lock_guard lock(heap_mutex_);
        auto it = heap_.find(address);
        if (it == heap_.end()) return false;
        heap_used_ -= it->second;
        heap_.erase(it);
        const bool freed = free(address);
        recount_heap();
        return freed;
    }
    bool limit_heap(size_t bytes) override {
        std::lock_guard lock(heap_mutex_);
        if (bytes < heap_used_) return false;
        heap_limit_ = bytes;
        return true;
    }

    void clear_heap() override {
        std::lock_guard lock(heap_mutex_);
        for (const auto& [address, room] : heap_) free(address);
        heap_.clear(), heap_used_ = 0, recount_heap();
    }

    bool set_aside(int limit, size_t bytes) override {
        std::lock_guard heap_lock(heap_mutex_);
        std::unique_lock lock(mutex_);
        uint64_t& now = aside_[limit];
        if (bytes > now && bytes - now > capacity_ - std::min<uint64_t>(used_, capacity_)) return false;
        count(used_ - now + bytes);
        now = bytes;
        lock.unlock();
        recount_heap();
        return true;
    }

    std::optional<Block> find(uint64_t address) const override {
        if (address < base_ || address - base_ >= reserved_) {
            auto run = mapped_.run(address);
            return run ? std::optional(Block{run->address, run->bytes, run->writable}) : std::nullopt;
        }
        std::shared_lock lock(mutex_);
        auto it = live_.upper_bound(address);
        if (it == live_.begin()) return std::nullopt;
        --it;
        if (address - it->first >= it->second.bytes) return std::nullopt;
        return Block{it->first, it->second.bytes, true, it->second.number};
    }
    std::optional<Block> nearest(uint64_t address) const override {
        constexpr uint64_t kNear = 1ull << 32;  // farther away it is no overrun of that allocation
        std::shared_lock lock(mutex_);
        std::optional<Block> found;
        uint64_t least = kNear;
        auto after = live_.upper_bound(address);
        if (after != live_.end() && after->first - address < least)
            found = Block{after->first, after->second.bytes}, least = after->first - address;
        if (after != live_.begin()) {
            auto before = std::prev(after);
            uint64_t end = before->first + before->second.bytes;
            if (address < end || address - end < least) found = Block{before->first, before->second.bytes};
        }
        return found;
    }
    bool valid(uint64_t address, size_t bytes, bool writing) const override {
        auto block = find(address);
        return block && bytes <= block->bytes - (address - block->address) && (block->writable || !writing);
    }
    VirtualMemory& virtual_memory() override { return mapped_; }
    size_t capacity() const override { return capacity_; }
    size_t used() const override {
        std::shared_lock lock(mutex_);
        return used_;
    }

    void tell(std::atomic<uint64_t>& used) override {
        std::unique_lock lock(mutex_);
        told_ = &used;
        *told_ = used_;
    }

  private:
    std::atomic<uint64_t>* told_ = nullptr;
    size_t capacity_;
    uint64_t base_ = 0, reserved_ = 0;
    uint64_t used_ = 0;
    mutable std::shared_mutex mutex_;
    std::map<uint64_t, uint64_t> gaps_;  // address -> bytes
    struct Live {
        uint64_t bytes, number;
        bool counted;
    };
    std::map<uint64_t, Live> live_;  // by address
    std::map<int, uint64_t> aside_;
    uint64_t allocations_ = 0;
    std::mutex heap_mutex_;
    std::map<uint64_t, uint64_t> heap_;
    uint64_t heap_used_ = 0, heap_limit_ = kOwnHeap;
    uint64_t heap_beyond_ = 0;  // of its blocks, what neither its limit nor the context has set aside
    AddressSpace mapped_{[this](uint64_t bytes) { return take(bytes); },
                         [this](uint64_t bytes) { give_back(bytes); }};

    // Counts the heap's blocks, too, so that a limit which does not hold them is seen; under heap_mutex_.
    void recount_heap() {
        std::unique_lock lock(mutex_);
        const auto aside = aside_.find(kHeapLimit);
        const uint64_t room = std::max(kOwnHeap, aside == aside_.end() ? 0 : aside->second);
        const uint64_t beyond = heap_used_ > room ? heap_used_ - room : 0;
        count(used_ - heap_beyond_ + beyond);
        heap_beyond_ = beyond;
    }
    bool take(uint64_t bytes) {
        std::unique_lock lock(mutex_);
        if (bytes > capacity_ || used_ > capacity_ - bytes) return false;
        count(used_ + bytes);
        return true;
    }
    void give_back(uint64_t bytes) {
        std::unique_lock lock(mutex_);
        count(used_ - bytes);
    }
    void count(uint64_t used) {  // under mutex_
        used_ = used;
        if (told_) *told_ = used;
    }

    // Whole units are to be one page each; the host may not have such pages, and takes small ones then.  Of
    // the last unit, of which a little may be used, such a page would cost the host all.
    void advise(uint64_t unit, uint64_t bytes) const {
        const uint64_t last = unit + bytes / kLarge * kLarge,
                       end = std::min(last + kLarge, base_ + reserved_);
        madvise(reinterpret_cast<void*>(unit), last - unit, MADV_HUGEPAGE);
        if (last < unit + bytes) madvise(reinterpret_cast<void*>(last), end - last, MADV_NOHUGEPAGE);
    }

    // Whole pages go back to the host, the edges are zeroed: the next owner reads nothing of the last.
    static void clear(uint64_t address, uint64_t bytes) {
        uint64_t end = address + bytes, first = round_up(address, kPage), last = end / kPage * kPage;
        if (first >= last) {
            std::memset(reinterpret_cast<void*>(address), 0, bytes);
            return;
        }
        std::memset(reinterpret_cast<void*>(address), 0, first - address);
        std::memset(reinterpret_cast<void*>(last), 0, end - last);
        madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
    }
};

}  // namespace

std::unique_ptr<DeviceMemory> make_device_memory(size_t capacity_bytes) {
    return std::make_unique<ReservedMemory>(capacity_bytes);
}

}  // namespace gpukernel::simgpu
