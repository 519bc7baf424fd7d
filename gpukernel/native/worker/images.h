// Module images that this server has seen, one file each, shared by its workers: a program whose image is
// there sends its name alone.
//
// The name is HMAC-SHA256(salt, image) with a salt of this server's: who can name an image has it, so nobody
// gets at another's.  What a worker stores it has named itself.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "wire/hmac.h"

namespace gpukernel::worker {

class Images {
  public:
    static constexpr uint64_t MOST_BYTES = 1 << 30;  // of all; beyond it the least recently used go

    bool open(const std::string& directory);  // false: nothing is kept, the salt stays zero
    bool kept() const { return !directory_.empty(); }
    const std::array<char, 32>& salt() const { return salt_; }

    // An image in memory, which others may share; a NUL stands behind it.
    class Held {
      public:
        Held() = default;
        Held(const void* data, size_t size) : data_(static_cast<const char*>(data)), size_(size) {}
        Held(Held&& other) noexcept : Held(other.data_, other.size_) { other.data_ = nullptr; }
        Held& operator=(Held&&) = delete;
        ~Held();
        explicit operator bool() const { return data_; }
        std::string_view view() const { return {data_, size_ - 1}; }

      private:
        const char* data_ = nullptr;
        size_t size_ = 0;  // with the NUL
    };
    Held find(const wire::Digest& name) const;
    void keep(std::string_view image) const;  // followed by a NUL

  private:
    std::string path_of(const wire::Digest& name) const;
    void make_room(uint64_t bytes) const;
    std::string directory_;
    std::array<char, 32> salt_{};
};

}  // namespace gpukernel::worker
