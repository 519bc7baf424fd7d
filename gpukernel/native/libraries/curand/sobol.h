// Sobol's sequence: its direction numbers are Joe's and Kuo's of 2008 (joe_kuo_6.bin), as NVIDIA's library
// has them; a scramble of our own, since NVIDIA's is no published one: a random lower triangular matrix for
// each dimension (Matoušek 1998) and a constant that is added.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gpukernel::libraries::curand {

constexpr uint32_t MOST_DIMENSIONS = 20000;
// One number for each bit of a point's index, the lowest first; the highest bit is the one behind the point.
// The upper halves are those of a sequence of 32 bits.
using Directions = std::array<uint64_t, 64>;

Directions sobol_directions(uint32_t dimension);      // below MOST_DIMENSIONS
Directions scrambled_directions(uint32_t dimension);  // the same
uint64_t scramble_constant(uint32_t dimension);

// The point before `index` is xored with the direction of the lowest bit that `index` has; this is the one of
// `index` itself.
constexpr uint64_t sobol_point(const Directions& directions, uint64_t index) {
    uint64_t point = 0;
    for (uint64_t gray = index ^ index >> 1; gray; gray &= gray - 1)
        point ^= directions[static_cast<size_t>(__builtin_ctzll(gray))];
    return point;
}

}  // namespace gpukernel::libraries::curand
