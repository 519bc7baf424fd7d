#include "simgpu/exec/address_space.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "common/checked.h"
#include "simgpu/exec/kernel_threads.h"

namespace gpukernel::simgpu {
namespace {
constexpr size_t kLargeRange = size_t{64} << 20;

constexpr int kAnonymous = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
constexpr uint64_t kEndOfUserSpace = 1ull << 47;
#ifdef __SANITIZE_THREAD__  // which ends a process that maps what it does not watch
constexpr uint64_t kLowest = 0x7e8000000000;
#else
constexpr uint64_t kLowest = 1;
#endif
void* at(uint64_t address) { return reinterpret_cast<void*>(address); }

bool empty_pages(uint64_t address, size_t bytes) {  // memory of nobody's in place of what was there
    if (::mmap(at(address), bytes, PROT_READ | PROT_WRITE, kAnonymous | MAP_FIXED, -1, 0) == MAP_FAILED)
        return false;
    ::madvise(at(address), bytes, MADV_DONTDUMP);
    return true;
}

}  // namespace

AddressSpace::~AddressSpace() {
    for (const auto& [address, reservation] : reserved_) ::munmap(at(address), reservation.bytes);
    if (file_ >= 0) ::close(file_);
}

std::optional<uint64_t> AddressSpace::reserve(size_t bytes, size_t alignment, uint64_t wanted) {
    alignment = std::max(alignment, GRANULARITY);
    if (bytes > kEndOfUserSpace || alignment > kEndOfUserSpace) return std::nullopt;
    std::unique_lock lock(mutex_);
    // A wish is heeded for large ranges alone, as by NVIDIA's driver.
    if (bytes >= kLargeRange && wanted >= kLowest && wanted % alignment == 0 && wanted < kEndOfUserSpace) {
        void* there =
            ::mmap(at(wanted), bytes, PROT_READ | PROT_WRITE, kAnonymous | MAP_FIXED_NOREPLACE, -1, 0);
        if (there == at(wanted)) {
            ::madvise(there, bytes, MADV_DONTDUMP);
            reserved_[wanted] = {bytes};
            return wanted;
        }
        if (there != MAP_FAILED) ::munmap(there, bytes);  // a kernel that does not know the flag
    }
    // As much more as the alignment may need; what is too much goes back.
    const std::optional<size_t> sum = checked_sum(bytes, alignment);
    if (!sum) return std::nullopt;
    const size_t room = *sum;
    void* there = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, kAnonymous, -1, 0);
    if (there == MAP_FAILED) return std::nullopt;
    const uint64_t base = reinterpret_cast<uint64_t>(there);
    const uint64_t address = (base + alignment - 1) / alignment * alignment, end = address + bytes;
    if (address > base) ::munmap(there, address - base);
    if (base + room > end) ::munmap(at(end), base + room - end);
    ::madvise(at(address), bytes, MADV_DONTDUMP);
    reserved_[address] = {bytes};
    return address;
}

bool AddressSpace::free(uint64_t address, size_t bytes) {
    std::unique_lock lock(mutex_);
    auto it = reserved_.find(address);
    if (it == reserved_.end() || it->second.bytes != bytes) return false;
    auto inside = mapped_.lower_bound(address);
    if (inside != mapped_.end() && inside->first < address + bytes) return false;
    reserved_.erase(it);
    ::munmap(at(address), bytes);
    return true;
}

bool AddressSpace::used(uint64_t address) const {
    std::shared_lock lock(mutex_);
    auto it = reservation(address, 1);
    return it != reserved_.end() && it->second.used;
}

bool AddressSpace::open_file() {
    if (file_ < 0) file_ = ::memfd_create("gpukernel-device-memory", MFD_CLOEXEC);
    return file_ >= 0;
}

std::optional<uint64_t> AddressSpace::create(size_t bytes) {
    std::unique_lock lock(mutex_);
    if (!open_file() || !take_(bytes)) return std::nullopt;
    if (::ftruncate(file_, static_cast<off_t>(file_bytes_ + bytes)) != 0) {
        give_back_(bytes);
        return std::nullopt;
    }
    // A place in the file is never used again: it has holes where memory was given back.
    physical_[++handles_] = {file_bytes_, bytes, 1, 0};
    file_bytes_ += bytes;
    return handles_;
}

void AddressSpace::settle(std::map<uint64_t, Physical>::iterator it) {
    const Physical& physical = it->second;
    if (physical.references || physical.mappings) return;
    ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(physical.offset),
                static_cast<off_t>(physical.bytes));
    give_back_(physical.bytes);
    physical_.erase(it);
}

bool AddressSpace::release(uint64_t handle) {
    std::unique_lock lock(mutex_);
    auto it = physical_.find(handle);
    if (it == physical_.end() || !it->second.references) return false;
    --it->second.references;
    settle(it);
    return true;
}

size_t AddressSpace::size_of(uint64_t handle) const {
    std::shared_lock lock(mutex_);
    auto it = physical_.find(handle);
    return it == physical_.end() || !it->second.references ? 0 : it->second.bytes;
}

std::map<uint64_t, AddressSpace::Reservation>::const_iterator AddressSpace::reservation(uint64_t address,
                                                                                        size_t bytes) const {
    auto it = reserved_.upper_bound(address);
    if (it == reserved_.begin()) return reserved_.end();
    --it;
    const uint64_t offset = address - it->first;
    return offset <= it->second.bytes && bytes <= it->second.bytes - offset ? it : reserved_.end();
}

VirtualMemory::Outcome AddressSpace::map(uint64_t address, size_t bytes, uint64_t handle) {
    std::unique_lock lock(mutex_);
    auto physical = physical_.find(handle);
    const auto home = reservation(address, bytes);
    if (physical == physical_.end() || !physical->second.references || bytes > physical->second.bytes ||
        home == reserved_.end())
        return Outcome::invalid;
    auto next = mapped_.lower_bound(address);
    if (next != mapped_.end() && next->first < address + bytes) return Outcome::invalid;
    if (next != mapped_.begin())
        if (auto before = std::prev(next); before->first + before->second.bytes > address)
            return Outcome::invalid;
    if (::mmap(at(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file_,
               static_cast<off_t>(physical->second.offset)) == MAP_FAILED)
        return Outcome::out_of_memory;
    ::madvise(at(address), bytes, MADV_DONTDUMP);
    mapped_[address] = {bytes, handle, Access::none};
    reserved_[home->first].used = true;
    ++physical->second.mappings;
    return Outcome::done;
}

bool AddressSpace::tiled(uint64_t address, size_t bytes) const {
    uint64_t reached = address;
    for (auto it = mapped_.find(address);
         it != mapped_.end() && it->first == reached && reached < address + bytes; ++it)
        reached += it->second.bytes;
    return bytes && reached == address + bytes;
}

bool AddressSpace::unmap(uint64_t address, size_t bytes) {
    std::unique_lock lock(mutex_);
    if (reservation(address, bytes) == reserved_.end() || !tiled(address, bytes)) return false;
    grant(address, bytes, Access::none);
    lock.unlock();
    forget_allocations();
    lock.lock();
    if (!tiled(address, bytes) || !empty_pages(address, bytes)) return false;
    for (auto it = mapped_.find(address); it != mapped_.end() && it->first < address + bytes;) {
        auto physical = physical_.find(it->second.handle);
        it = mapped_.erase(it);
        --physical->second.mappings;
        settle(physical);
    }
    return true;
}

void AddressSpace::grant(uint64_t address, size_t bytes, Access access) {
    const uint64_t end = address + bytes;
    auto it = accessible_.upper_bound(address);
    if (it != accessible_.begin()) --it;
    while (it != accessible_.end() && it->first < end) {  // cut out what was there
        const uint64_t from = it->first, to = from + it->second.bytes;
        const Stretch old = it->second;
        if (to <= address) {
            ++it;
            continue;
        }
        it = accessible_.erase(it);
        if (from < address) accessible_[from] = {address - from, old.access};
        if (to > end) it = accessible_.emplace(end, Stretch{to - end, old.access}).first;
    }
    if (access == Access::none) return;
    auto here = accessible_.emplace(address, Stretch{bytes, access}).first;
    const auto home = reservation(address, bytes);
    auto joins = [&](auto& left, auto& right) {
        return left->first + left->second.bytes == right->first &&
               left->second.access == right->second.access && reservation(left->first, 1) == home &&
               reservation(right->first, 1) == home;
    };
    if (auto next = std::next(here); next != accessible_.end() && joins(here, next)) {
        here->second.bytes += next->second.bytes;
        accessible_.erase(next);
    }
    if (here == accessible_.begin()) return;
    if (auto before = std::prev(here); joins(before, here)) {
        before->second.bytes += here->second.bytes;
        accessible_.erase(here);
    }
}

bool AddressSpace::set_access(uint64_t address, size_t bytes, Access access) {
    std::unique_lock lock(mutex_);
    if (reservation(address, bytes) == reserved_.end() || !tiled(address, bytes)) return false;
    for (auto it = mapped_.find(address); it != mapped_.end() && it->first < address + bytes; ++it)
        it->second.access = access;
    grant(address, bytes, access);
    lock.unlock();
    forget_allocations();
    return true;
}

std::optional<VirtualMemory::Mapping> AddressSpace::mapping(uint64_t address) const {
    std::shared_lock lock(mutex_);
    auto it = mapped_.upper_bound(address);
    if (it == mapped_.begin()) return std::nullopt;
    --it;
    if (address - it->first >= it->second.bytes) return std::nullopt;
    return Mapping{it->first, it->second.bytes, it->second.handle, it->second.access};
}

uint64_t AddressSpace::retain(uint64_t address) {
    const auto found = mapping(address);
    std::unique_lock lock(mutex_);
    auto it = found ? physical_.find(found->handle) : physical_.end();
    if (it == physical_.end()) return 0;
    ++it->second.references;
    return it->first;
}

std::optional<AddressSpace::Run> AddressSpace::run(uint64_t address) const {
    std::shared_lock lock(mutex_);
    auto it = accessible_.upper_bound(address);
    if (it == accessible_.begin()) return std::nullopt;
    --it;
    if (address - it->first >= it->second.bytes) return std::nullopt;
    return Run{it->first, it->second.bytes, it->second.access == Access::write};
}

std::string AddressSpace::trouble(uint64_t address, size_t bytes, bool writing) const {
    std::shared_lock lock(mutex_);
    auto home = reservation(address, 1);
    if (home == reserved_.end()) return {};
    lock.unlock();
    // The first byte that is not as it should be: the access may begin in good memory.
    std::optional<Mapping> found = mapping(address);
    if (found && found->access != Access::none && address + bytes > found->address + found->bytes)
        found = mapping(found->address + found->bytes);
    if (!found) return "is reserved, but no memory is mapped there";
    if (found->access == Access::none) return "is mapped, but access to it was not granted (cuMemSetAccess)";
    return writing && found->access == Access::read ? "is mapped for reading only (cuMemSetAccess)" : "";
}

}  // namespace gpukernel::simgpu
