// A generator of cuRAND as a program has set it: in the program, on the wire, and beside the simulated GPU.
#pragma once

#include <cstdint>

#include "libraries/handles.h"

namespace gpukernel::libraries::curand {

// The numbers are those of NVIDIA's public curand.h.
enum Status : int {
    SUCCESS = 0,
    NOT_INITIALIZED = 101,
    ALLOCATION_FAILED = 102,
    TYPE_ERROR = 103,
    OUT_OF_RANGE = 104,
    LENGTH_NOT_MULTIPLE = 105,
    LAUNCH_FAILURE = 201,
    INITIALIZATION_FAILED = 203,
    ARCH_MISMATCH = 204,  // "the device does not support the feature": what is not supported here
    INTERNAL_ERROR = 999,
};
enum Type : int {
    DEFAULT = 100,
    XORWOW = 101,
    MRG32K3A = 121,
    MT19937 = 142,
    PHILOX = 161,
    QUASI_DEFAULT = 200,
    SOBOL32 = 201,
    SCRAMBLED_SOBOL32 = 202,
    SOBOL64 = 203,
    SCRAMBLED_SOBOL64 = 204
};
constexpr bool is_quasi(int64_t type) { return type >= QUASI_DEFAULT && type <= SCRAMBLED_SOBOL64; }
constexpr bool is_long(int64_t type) { return type == SOBOL64 || type == SCRAMBLED_SOBOL64; }
constexpr bool is_scrambled(int64_t type) { return type == SCRAMBLED_SOBOL32 || type == SCRAMBLED_SOBOL64; }
constexpr bool is_type(int64_t type) {
    return type == DEFAULT || type == XORWOW || type == MRG32K3A || type == MT19937 || type == PHILOX ||
           is_quasi(type);
}
constexpr bool is_ordering(int64_t type, int64_t ordering) {
    return is_quasi(type) ? ordering == 201 : ordering >= 100 && ordering <= 104;
}

// What is generated, by the position of its function in the worker's table.
enum Kind : uint32_t {
    BITS,
    UNIFORM,
    UNIFORM_DOUBLE,
    NORMAL,
    NORMAL_DOUBLE,
    LOG_NORMAL,
    LOG_NORMAL_DOUBLE,
    POISSON,
    LONG_BITS
};
constexpr uint32_t KINDS = LONG_BITS + 1;
constexpr uint64_t bytes_of(uint32_t kind) {
    return kind == UNIFORM_DOUBLE || kind == NORMAL_DOUBLE || kind == LOG_NORMAL_DOUBLE || kind == LONG_BITS
               ? 8
               : 4;
}
constexpr uint64_t MOST_NUMBERS = uint64_t{1} << 40;

// It travels with each call.  The `epoch` grows with each setting: then a generator begins again.
struct GeneratorSettings {
    int64_t type = XORWOW, ordering = 100;
    uint64_t seed = 0, offset = 0, epoch = 0;
    // A quasirandom generator has no seed; in its place stands how many dimensions there are.
    uint64_t dimensions() const { return seed; }
};
struct Generator : GeneratorSettings {
    // Numbers of 32 bits since the epoch began, or points where they are quasirandom; beside the simulated
    // GPU.
    uint64_t position = 0;
};
// One call's own words: where to, how many, and the parameters of the distribution.
struct Order {
    uint64_t to = 0, count = 0;
    double mean = 0, deviation = 1;
};

// What each side defines.
int create(void** place, int type);
int destroy(void* generator);
int generate(StreamHandle& handle, Generator& generator, Kind kind, const Order& order);
// Of a living one; nullptr for a stray.
Generator* generator_of(StreamHandle& handle);

}  // namespace gpukernel::libraries::curand
