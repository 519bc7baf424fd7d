#include "common/sha256.h"

#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace gpukernel::wire {

namespace {
alignas(16) constexpr uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using Compress = void (*)(uint32_t* state, const uint8_t* blocks, size_t count);

void compress_anywhere(uint32_t* state, const uint8_t* block, size_t count) {
    for (; count; --count, block += 64) {
        uint32_t w[64];
        for (int i = 0; i < 16; ++i)
            w[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 |
                   uint32_t{block[4 * i + 2]} << 8 | block[4 * i + 3];
        for (int i = 16; i < 64; ++i) {
            const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
            const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        uint32_t v[8];
        std::memcpy(v, state, sizeof v);
        auto& [a, b, c, d, e, f, g, h] = v;
        for (int i = 0; i < 64; ++i) {
            const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                ((e & f) ^ (~e & g)) + K[i] + w[i];
            const uint32_t t2 =
                (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
        }
        for (int i = 0; i < 8; ++i) state[i] += v[i];
    }
}

// The instructions keep the state as two vectors, {a b e f} and {c d g h}, and do two rounds each.
__attribute__((target("sha,sse4.1"))) void compress_here(uint32_t* state, const uint8_t* block,
                                                         size_t count) {
    const auto at = [](const void* p) { return static_cast<const __m128i*>(p); };
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i low = _mm_shuffle_epi32(_mm_loadu_si128(at(state)), 0xb1);       // c d a b
    __m128i high = _mm_shuffle_epi32(_mm_loadu_si128(at(state + 4)), 0x1b);  // e f g h
    __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xf0);
    for (; count; --count, block += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];
        for (int i = 0; i < 4; ++i) w[i] = _mm_shuffle_epi8(_mm_loadu_si128(at(block + 16 * i)), big_endian);
        for (int i = 0; i < 16; ++i) {
            const __m128i now = w[i & 3], last = w[(i + 3) & 3];
            const __m128i added = _mm_add_epi32(now, _mm_load_si128(at(K + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, added);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(added, 0x0e));
            const __m128i seventh = _mm_alignr_epi8(last, w[(i + 2) & 3], 4);
            const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) & 3]), seventh);
            w[i & 3] = _mm_sha256msg2_epu32(sum, last);
        }
        abef = _mm_add_epi32(abef, abef_before), cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    low = _mm_shuffle_epi32(abef, 0x1b), high = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(low, high, 0xf0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(high, low, 8));
}

Compress best() {
    unsigned a, b, c, d;
    const bool sse41 = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_1) && (c & bit_SSSE3);
    return sse41 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA) ? compress_here
                                                                             : compress_anywhere;
}
const Compress compress = best();
}  // namespace

void Sha256::add(std::string_view data) {
    if (data.empty()) return;  // which may have no address
    auto from = reinterpret_cast<const uint8_t*>(data.data());
    size_t left = data.size();
    total_ += left;
    if (fill_) {
        const size_t piece = std::min(left, 64 - fill_);
        std::memcpy(block_ + fill_, from, piece);
        fill_ += piece, from += piece, left -= piece;
        if (fill_ < 64) return;
        compress(state_, block_, 1);
        fill_ = 0;
    }
    compress(state_, from, left / 64);
    fill_ = left % 64;
    if (fill_) std::memcpy(block_, from + left - fill_, fill_);
}

Digest Sha256::finish() {
    const uint64_t bits = total_ * 8;
    block_[fill_++] = 0x80;
    if (fill_ > 56) {
        std::memset(block_ + fill_, 0, 64 - fill_);
        compress(state_, block_, 1);
        fill_ = 0;
    }
    std::memset(block_ + fill_, 0, 56 - fill_);
    for (int i = 0; i < 8; ++i) block_[56 + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
    compress(state_, block_, 1);
    Digest digest;
    for (int i = 0; i < 32; ++i) digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    return digest;
}

Digest sha256(std::initializer_list<std::string_view> pieces) {
    Sha256 hash;
    for (std::string_view piece : pieces) hash.add(piece);
    return hash.finish();
}

}  // namespace gpukernel::wire
