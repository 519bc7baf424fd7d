// SHA-256 (FIPS 180-4), by the processor's own instructions where it has them, since images of many MiB are
// hashed.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace gpukernel::wire {

using Digest = std::array<uint8_t, 32>;

// An incremental hash; `finish` may be called once.
class Sha256 {
  public:
    void add(std::string_view data);
    Digest finish();

  private:
    uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t block_[64];
    size_t fill_ = 0;
    uint64_t total_ = 0;
};

// The hash of the concatenated pieces.
Digest sha256(std::initializer_list<std::string_view> pieces);

}  // namespace gpukernel::wire
