#include "libraries/curand/sobol.h"

namespace gpukernel::libraries::curand {

namespace {
constexpr uint32_t DEGREES = 18;
constexpr uint64_t TABLE[] = {
#include "curand_sobol.inc"  // codegen/sobol_numbers.py, which says what stands where
};

// Up to 32 bits from a place on.
uint32_t bits(uint64_t place, uint32_t width) {
    const uint64_t shift = place % 64, low = TABLE[place / 64] >> shift;
    const uint64_t all = shift ? low | TABLE[place / 64 + 1] << (64 - shift) : low;
    return static_cast<uint32_t>(all & ((uint64_t{1} << width) - 1));
}

uint64_t mixed(uint64_t state) {  // SplitMix64 (Steele, Lea, Flood 2014)
    state += 0x9e3779b97f4a7c15;
    state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9;
    state = (state ^ state >> 27) * 0x94d049bb133111eb;
    return state ^ state >> 31;
}
}  // namespace

Directions sobol_directions(uint32_t dimension) {
    Directions found;
    if (!dimension) {
        for (size_t i = 0; i < found.size(); ++i) found[i] = uint64_t{1} << (63 - i);
        return found;
    }
    uint32_t degree = 1;
    uint64_t place = DEGREES * 16, before = dimension - 1;
    for (;; ++degree) {
        const uint64_t there = bits((degree - 1) * 16, 16), each = degree - 1 + degree * (degree - 1) / 2;
        if (before < there) {
            place += before * each;
            break;
        }
        before -= there, place += there * each;
    }
    const uint32_t inner = bits(place, degree - 1);
    place += degree - 1;
    found[0] = uint64_t{1} << 63;
    for (uint32_t i = 1; i < degree; place += i++) found[i] = uint64_t{bits(place, i) << 1 | 1} << (63 - i);
    for (uint32_t i = degree; i < found.size(); ++i) {  // Bratley and Fox 1988
        found[i] = found[i - degree] ^ found[i - degree] >> degree;
        for (uint32_t k = 1; k < degree; ++k)
            if (inner >> (degree - 1 - k) & 1) found[i] ^= found[i - k];
    }
    return found;
}

Directions scrambled_directions(uint32_t dimension) {
    Directions found = sobol_directions(dimension);
    Directions columns;  // of the matrix: a one, and below it what chance has given
    for (size_t i = 0; i < columns.size(); ++i)
        columns[i] = (uint64_t{1} << 63 | mixed(uint64_t{dimension} << 7 | i) >> 1) >> i;
    for (uint64_t& direction : found) {
        uint64_t product = 0;
        for (uint64_t left = direction; left; left &= left - 1)
            product ^= columns[static_cast<size_t>(63 - __builtin_ctzll(left))];
        direction = product;
    }
    return found;
}

uint64_t scramble_constant(uint32_t dimension) { return mixed(uint64_t{dimension} << 7 | 64); }

}  // namespace gpukernel::libraries::curand
