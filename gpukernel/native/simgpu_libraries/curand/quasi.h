// Sobol's points and what the functions of cuRAND make of them, by the formulas of curand_uniform.h; normal
// numbers are the inverse of their distribution.
#pragma once

#include <cmath>
#include <cstdint>

#include "libraries/curand/generator.h"
#include "libraries/curand/sobol.h"

namespace gpukernel::simgpu_libraries::curand {

// The number below which a part `p` of the normal numbers lies: by Abramowitz and Stegun (26.2.23), and two
// steps of Halley, which leave nothing of its error.
inline double normal_quantile(double p) {
    if (p > 0.5) return -normal_quantile(1 - p);
    const double t = std::sqrt(-2 * std::log(p));
    double x =
        (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308))) - t;
    for (int step = 0; step < 2; ++step) {
        const double error = 0.5 * std::erfc(-x * std::sqrt(0.5)) - p;
        const double slope = std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0));
        const double u = error / slope;
        x -= u / (1 + x * u / 2);
    }
    return x;
}

// The number of events that as many as a part `p` of the cases have at most, where `mean` are expected: from
// the most frequent number on, up or down.
inline uint32_t poisson_quantile(double mean, double p) {
    const double begin = std::floor(mean);
    const double most = std::exp(begin * std::log(mean) - mean - std::lgamma(begin + 1));
    double below = 0;  // the part that has fewer than `begin`
    for (double k = begin, part = most; k > 0 && part > below * 1e-18; --k) below += part *= k / mean;
    double k = begin, part = most;
    while (k > 0 && p <= below) part *= k-- / mean, below -= part;
    // Where the sum no longer grows, what is missing from `p` is rounding.
    while (p > below + part && below + part > below) below += part, part *= mean / ++k;
    return static_cast<uint32_t>(k);
}

struct QuasiNumber {
    uint64_t point;  // the upper half alone where the sequence has 32 bits
    bool wide;

    uint32_t half() const { return static_cast<uint32_t>(point >> 32); }
    float uniform() const { return static_cast<float>(half()) * 0x1p-32f + 0x1p-33f; }
    double uniform_double() const {
        return wide ? static_cast<double>(point >> 11) * 0x1p-53 + 0x1p-54 : half() * 0x1p-32 + 0x1p-32;
    }
    // In the middle of the numbers that have the same bits; the last one's would be rounded to 1, which no
    // part of the numbers is.
    double middle(bool twice) const {
        return wide && twice ? std::fmin(static_cast<double>(point >> 11) * 0x1p-53 + 0x1p-54, 1 - 0x1p-53)
                             : half() * 0x1p-32 + 0x1p-33;
    }
};

}  // namespace gpukernel::simgpu_libraries::curand
