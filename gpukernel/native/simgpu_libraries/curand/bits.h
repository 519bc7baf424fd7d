// The generators' bits: 32 at each position of a sequence, which begins anywhere.
//
// Philox4x32-10 is Salmon's and others' (SC 2011), in the order in which NVIDIA's library was seen to have
// it: the key is the seed, and fours of numbers are those of 65,536 sequences in turn (curand_init's in
// NVIDIA's public curand_kernel.h): one's number is the counter's high half, the place in it the low one.
// MRG32k3a is L'Ecuyer's (1999), its streams' steps by powers of its matrices, stretched to 32 bits; a seed
// sets its first state as curand_init does. XORWOW is Marsaglia's (2003) and MT19937 Matsumoto's and
// Nishimura's (1998): each block of 65,536 numbers is a sequence of its own, begun from seed and block.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "libraries/curand/generator.h"

namespace gpukernel::simgpu_libraries::curand {

constexpr uint64_t BLOCK = 1 << 16, PHILOX_SEQUENCES = 1 << 16;

inline uint64_t mixed(uint64_t& state) {  // SplitMix64 (Steele, Lea, Flood 2014), to begin others with
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

inline std::array<uint32_t, 4> philox(uint64_t counter, uint64_t high, uint64_t seed) {
    std::array<uint32_t, 4> x{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                              static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)};
    auto k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round, k0 += 0x9e3779b9, k1 += 0xbb67ae85) {
        const uint64_t a = uint64_t{0xd2511f53} * x[0], b = uint64_t{0xcd9e8d57} * x[2];
        x = {static_cast<uint32_t>(b >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(b),
             static_cast<uint32_t>(a >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(a)};
    }
    return x;
}

class Mrg {
  public:
    static constexpr uint64_t M1 = 4294967087, M2 = 4294944443;
    Mrg(uint64_t seed, uint64_t position) {
        const auto low = static_cast<uint32_t>(seed) ^ 0x55555555u;
        const auto high = static_cast<uint32_t>(seed >> 32) ^ 0xaaaaaaaau;
        for (size_t i = 0; i < 3; ++i) {
            a_[i] = seed ? uint64_t{12345} * (i == 1 ? high : low) % M1 : 12345;
            b_[i] = seed ? uint64_t{12345} * (i == 1 ? low : high) % M2 : 12345;
        }
        skip(a_, {0, 1, 0, 0, 0, 1, M1 - 810728, 1403580, 0}, M1, position);
        skip(b_, {0, 1, 0, 0, 0, 1, M2 - 1370589, 0, 527612}, M2, position);
    }
    uint32_t next() {
        const uint64_t a = (1403580 * a_[1] % M1 + (M1 - 810728) * a_[0] % M1) % M1;
        a_ = {a_[1], a_[2], a};
        const uint64_t b = (527612 * b_[2] % M2 + (M2 - 1370589) * b_[0] % M2) % M2;
        b_ = {b_[1], b_[2], b};
        return static_cast<uint32_t>(static_cast<double>(a > b ? a - b : a + M1 - b) * TO_32_BITS);
    }

  private:
    static constexpr double TO_32_BITS = 1.000000048662;
    using State = std::array<uint64_t, 3>;
    using Matrix = std::array<uint64_t, 9>;
    static void skip(State& state, Matrix step, uint64_t modulus, uint64_t count) {
        const auto product = [modulus](uint64_t x, uint64_t y) {
            return x * y % modulus;
        };  // both below 2^32
        for (; count; count >>= 1) {
            if (count & 1) {
                State next{};
                for (size_t i = 0; i < 3; ++i)
                    for (size_t j = 0; j < 3; ++j)
                        next[i] = (next[i] + product(step[i * 3 + j], state[j])) % modulus;
                state = next;
            }
            Matrix twice{};
            for (size_t i = 0; i < 3; ++i)
                for (size_t j = 0; j < 3; ++j)
                    for (size_t k = 0; k < 3; ++k)
                        twice[i * 3 + j] =
                            (twice[i * 3 + j] + product(step[i * 3 + k], step[k * 3 + j])) % modulus;
            step = twice;
        }
    }
    State a_, b_;
};

class Xorwow {
  public:
    Xorwow(uint64_t seed, uint64_t block) {
        uint64_t state = seed ^ block * 0xd1342543de82ef95;
        for (uint32_t& one : x_) one = static_cast<uint32_t>(mixed(state));
        if (!(x_[0] | x_[1] | x_[2] | x_[3] | x_[4])) x_[0] = 1;
        d_ = static_cast<uint32_t>(mixed(state));
    }
    uint32_t next() {
        uint32_t t = x_[0] ^ x_[0] >> 2;
        x_ = {x_[1], x_[2], x_[3], x_[4], x_[4] ^ x_[4] << 4 ^ t ^ t << 1};
        return x_[4] + (d_ += 362437);
    }

  private:
    std::array<uint32_t, 5> x_;
    uint32_t d_;
};

// Fills `to` with the numbers from `position`.
inline void fill(const libraries::curand::GeneratorSettings& settings, uint64_t position, uint32_t* to,
                 uint64_t count) {
    using namespace libraries::curand;
    if (settings.type == PHILOX) {
        for (uint64_t i = 0; i < count;) {
            const uint64_t block = (position + i) / 4;
            const auto four = philox(block / PHILOX_SEQUENCES, block % PHILOX_SEQUENCES, settings.seed);
            do to[i] = four[(position + i) % 4];
            while (++i < count && (position + i) % 4);
        }
        return;
    }
    if (settings.type == MRG32K3A) {
        Mrg generator(settings.seed, position);
        for (uint64_t i = 0; i < count; ++i) to[i] = generator.next();
        return;
    }
    for (uint64_t i = 0; i < count;) {
        const uint64_t block = (position + i) / BLOCK, skipped = (position + i) % BLOCK;
        const uint64_t end = std::min(count, i + BLOCK - skipped);
        const auto take = [&](auto next) {
            for (uint64_t k = 0; k < skipped; ++k) next();
            for (; i < end; ++i) to[i] = next();
        };
        if (settings.type == MT19937) {
            std::seed_seq seeds{static_cast<uint32_t>(settings.seed),
                                static_cast<uint32_t>(settings.seed >> 32), static_cast<uint32_t>(block),
                                static_cast<uint32_t>(block >> 32)};
            std::mt19937 generator(seeds);
            take([&] { return static_cast<uint32_t>(generator()); });
        } else {
            Xorwow generator(settings.seed, block);
            take([&] { return generator.next(); });
        }
    }
}

}  // namespace gpukernel::simgpu_libraries::curand
