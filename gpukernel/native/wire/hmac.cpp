#include "hmac.h"

#include <bit>
#include <cstring>

namespace gpukernel::wire {

namespace {
constexpr uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

class Sha256 {
  public:
    void add(std::string_view data) {
        total_ += data.size();
        for (char c : data) {
            block_[fill_++] = static_cast<uint8_t>(c);
            if (fill_ == 64) compress();
        }
    }
    Digest finish() {
        const uint64_t bits = total_ * 8;
        block_[fill_++] = 0x80;
        if (fill_ > 56) {
            std::memset(block_ + fill_, 0, 64 - fill_);
            compress();
        }
        std::memset(block_ + fill_, 0, 56 - fill_);
        for (int i = 0; i < 8; ++i) block_[56 + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
        compress();
        Digest digest;
        for (int i = 0; i < 32; ++i) digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
        return digest;
    }

  private:
    void compress() {
        uint32_t w[64];
        for (int i = 0; i < 16; ++i)
            w[i] = uint32_t{block_[4 * i]} << 24 | uint32_t{block_[4 * i + 1]} << 16 |
                   uint32_t{block_[4 * i + 2]} << 8 | block_[4 * i + 3];
        for (int i = 16; i < 64; ++i) {
            const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
            const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        uint32_t v[8];
        std::memcpy(v, state_, sizeof v);
        auto& [a, b, c, d, e, f, g, h] = v;
        for (int i = 0; i < 64; ++i) {
            const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                ((e & f) ^ (~e & g)) + K[i] + w[i];
            const uint32_t t2 =
                (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
        }
        for (int i = 0; i < 8; ++i) state_[i] += v[i];
        fill_ = 0;
    }
    uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t block_[64];
    size_t fill_ = 0;
    uint64_t total_ = 0;
};

std::string_view view(const void* data, size_t size) { return {static_cast<const char*>(data), size}; }
}  // namespace

Digest sha256(std::initializer_list<std::string_view> pieces) {
    Sha256 hash;
    for (std::string_view piece : pieces) hash.add(piece);
    return hash.finish();
}

Digest hmac_sha256(std::string_view key, std::initializer_list<std::string_view> pieces) {
    uint8_t inner[64] = {}, outer[64];
    if (key.size() > 64) {
        Digest digest = sha256({key});
        std::memcpy(inner, digest.data(), digest.size());
    } else {
        std::memcpy(inner, key.data(), key.size());
    }
    for (int i = 0; i < 64; ++i) outer[i] = inner[i] ^ 0x5c, inner[i] ^= 0x36;
    Sha256 hash;
    hash.add(view(inner, 64));
    for (std::string_view piece : pieces) hash.add(piece);
    Digest digest = hash.finish();
    return sha256({view(outer, 64), view(digest.data(), digest.size())});
}

bool equal(const Digest& a, const uint8_t* b) {
    uint8_t difference = 0;
    for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
    return difference == 0;
}

}  // namespace gpukernel::wire
