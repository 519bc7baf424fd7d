// Physical memory and the reserved address ranges that it is mapped at (cuMemCreate, cuMemAddressReserve,
// cuMemMap, cuMemSetAccess).
#pragma once

#include <functional>
#include <map>
#include <shared_mutex>

#include "simgpu/engine.h"

namespace gpukernel::simgpu {

// All physical memory is one sparse file without a name, so that two mappings of one piece are the same
// bytes. Addresses that are reserved and not mapped are the host's memory too: who may touch what is checked
// for every access as everywhere, and a kernel that still runs when its memory is unmapped harms nobody.
class AddressSpace final : public VirtualMemory {
  public:
    // `take` charges so many bytes to the device, or returns false; `give_back` returns them.
    AddressSpace(std::function<bool(uint64_t)> take, std::function<void(uint64_t)> give_back)
        : take_(std::move(take)), give_back_(std::move(give_back)) {}
    ~AddressSpace() override;

    std::optional<uint64_t> reserve(size_t bytes, size_t alignment, uint64_t wanted) override;
    bool free(uint64_t address, size_t bytes) override;
    bool used(uint64_t address) const override;
    std::optional<uint64_t> create(size_t bytes) override;
    bool release(uint64_t handle) override;
    size_t size_of(uint64_t handle) const override;
    Outcome map(uint64_t address, size_t bytes, uint64_t handle) override;
    bool unmap(uint64_t address, size_t bytes) override;
    bool set_access(uint64_t address, size_t bytes, Access access) override;
    std::optional<Mapping> mapping(uint64_t address) const override;
    uint64_t retain(uint64_t address) override;
    std::string trouble(uint64_t address, size_t bytes, bool writing) const override;

    // Around `address`, everything that is accessible in the same way, whatever mappings it is made of.
    struct Run {
        uint64_t address;
        size_t bytes;
        bool writable;
    };
    std::optional<Run> run(uint64_t address) const;

  private:
    struct Physical {
        uint64_t offset;  // in the file
        size_t bytes;
        uint64_t references, mappings;
    };
    struct Piece {
        size_t bytes;
        uint64_t handle;
        Access access;
    };
    struct Reservation {
        size_t bytes;
        bool used = false;  // something was mapped there
    };
    struct Stretch {
        size_t bytes;
        Access access;
    };
    // Under mutex_:
    bool open_file();
    void settle(std::map<uint64_t, Physical>::iterator it);  // gives it back where nothing refers to it
    bool tiled(uint64_t address, size_t bytes) const;        // by whole mappings, without a gap
    std::map<uint64_t, Reservation>::const_iterator reservation(uint64_t address, size_t bytes) const;
    void grant(uint64_t address, size_t bytes, Access access);

    std::function<bool(uint64_t)> take_;
    std::function<void(uint64_t)> give_back_;
    mutable std::shared_mutex mutex_;
    int file_ = -1;
    uint64_t file_bytes_ = 0, handles_ = 0;
    std::map<uint64_t, Reservation> reserved_;
    std::map<uint64_t, Physical> physical_;
    std::map<uint64_t, Piece> mapped_;
    std::map<uint64_t, Stretch> accessible_;  // neighbours with the same access are one
};

}  // namespace gpukernel::simgpu
