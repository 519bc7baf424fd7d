// The server's cache of module images: one file each, shared by the workers of all its leases.  A program
// whose image is in the cache sends only the image's name.
//
// The name is HMAC-SHA256(salt, image) under a salt of this server.  Only a program that has an image can
// compute its name, so no program reads another's image; and a worker computes the name of what it stores
// itself.  The folder is shared by workers that do not trust each other: what is read is copied and checked
// against its name, and the agent, which alone can list the folder, keeps it within MOST_BYTES.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "common/hmac.h"

namespace gpukernel::worker {

class Images {
  public:
    static constexpr uint64_t MOST_BYTES = 1 << 30;  // of all files; one has at most a quarter
    // A worker writes so many bytes at once and so many in a second; a larger image once none is owed.
    static constexpr double AT_ONCE = 64 << 20, A_SECOND = 2 << 20;

    // Uses `directory`, and the salt in it, which is made where there is none; false where that fails: then
    // nothing is cached and the salt stays zero.
    // Who `began_anew` after a fault may write nothing at first: a program could cause such faults at will.
    bool open(const std::string& directory, bool began_anew);
    bool kept() const { return !directory_.empty(); }
    const std::array<char, 32>& salt() const { return salt_; }

    // A copy of a cached image; a NUL follows its bytes.
    class Mapped {
      public:
        Mapped() = default;
        Mapped(const void* data, size_t size) : data_(static_cast<const char*>(data)), size_(size) {}
        Mapped(Mapped&& other) noexcept : Mapped(other.data_, other.size_) { other.data_ = nullptr; }
        Mapped& operator=(Mapped&&) = delete;
        ~Mapped();
        explicit operator bool() const { return data_; }
        std::string_view view() const { return {data_, size_ - 1}; }

      private:
        const char* data_ = nullptr;
        size_t size_ = 0;  // including the NUL
    };
    // The image of that name, verified against it; empty where there is none.  `take` charges the bytes of
    // the copy, which `beyond` says were refused.
    Mapped find(const wire::Digest& name, const std::function<bool(uint64_t)>& take, bool& beyond) const;
    // Stores an image of wire::NAMED_IMAGE bytes or more; a NUL must follow its bytes.
    void keep(std::string_view image) const;

  private:
    std::string path_of(const wire::Digest& name) const;
    bool may_write(uint64_t bytes) const;
    std::string directory_;
    std::array<char, 32> salt_{};
    // What this worker may still write (a token bucket): the agent prunes the folder now and then only.
    mutable std::mutex mutex_;
    mutable double left_ = AT_ONCE;
    mutable std::chrono::steady_clock::time_point left_at_ = std::chrono::steady_clock::now();
};

}  // namespace gpukernel::worker
