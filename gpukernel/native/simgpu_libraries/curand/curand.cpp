// libcurand beside the simulated GPU: a call is pieces, each of which begins at its own position.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "simgpu_libraries/curand/bits.h"
#include "simgpu_libraries/curand/quasi.h"
#include "simgpu_libraries/device_work.h"

namespace gpukernel::libraries::curand {

using namespace simgpu_libraries;

namespace {
constexpr uint64_t AT_ONCE = 1 << 14;  // even: pairs stay together

// In (0, 1], as cuRAND's are.
float uniform(uint32_t bits) { return static_cast<float>(bits) * 0x1p-32f + 0x1p-33f; }
double uniform(uint32_t low, uint32_t high) {
    return static_cast<double>(static_cast<uint64_t>(high) << 21 ^ low) * 0x1p-53 + 0x1p-54;
}

// The number of events where `mean` are expected: for few by multiplication (Knuth), for many by transformed
// rejection (Hörmann 1993, PTRS); its bits are a sequence of its own for each number.
uint32_t poisson(double mean, uint64_t state) {
    const auto next = [&state] {
        const uint64_t bits = simgpu_libraries::curand::mixed(state);
        return uniform(static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32));
    };
    if (mean < 10) {
        const double end = std::exp(-mean);
        uint32_t events = 0;
        for (double product = next(); product > end; product *= next()) ++events;
        return events;
    }
    const double root = std::sqrt(mean), b = 0.931 + 2.53 * root, a = -0.059 + 0.02483 * b;
    const double inverse = 1.1239 + 1.1328 / (b - 3.4), limit = 0.9277 - 3.6224 / (b - 2);
    for (;;) {
        const double u = next() - 0.5, v = next(), us = 0.5 - std::fabs(u);
        const double k = std::floor((2 * a / us + b) * u + mean + 0.43);
        if (us >= 0.07 && v <= limit) return static_cast<uint32_t>(k);
        if (k < 0 || (us < 0.013 && v > us)) continue;
        if (std::log(v * inverse / (a / (us * us) + b)) <= k * std::log(mean) - mean - std::lgamma(k + 1))
            return static_cast<uint32_t>(k);
    }
}

template <class T>
void put(uint64_t to, uint64_t index, T value) {
    __builtin_memcpy(reinterpret_cast<T*>(to) + index, &value, sizeof value);
}

// Two normal numbers (Box and Muller 1958).
struct Pair {
    double first, second;
    Pair(double u, double v)
        : first(std::sqrt(-2 * std::log(u)) * std::sin(2 * std::numbers::pi * v)),
          second(std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v)) {}
};

void write(Kind kind, const Order& order, uint64_t first, uint64_t count, const uint32_t* bits,
           uint64_t seed) {
    const auto of_two = [bits](uint64_t i) { return uniform(bits[2 * i], bits[2 * i + 1]); };
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t at = first + i;
        switch (kind) {
            case BITS:
                put(order.to, at, bits[i]);
                break;
            case UNIFORM:
                put(order.to, at, uniform(bits[i]));
                break;
            case UNIFORM_DOUBLE:
                put(order.to, at, of_two(i));
                break;
            case POISSON:
                put(order.to, at,
                    poisson(order.mean, seed ^ (static_cast<uint64_t>(bits[2 * i]) << 32 | bits[2 * i + 1])));
                break;
            default: {  // quasirandom generators alone have LONG_BITS
                const bool wide = kind == NORMAL_DOUBLE || kind == LOG_NORMAL_DOUBLE;
                const bool exponential = kind == LOG_NORMAL || kind == LOG_NORMAL_DOUBLE;
                const uint64_t even = i & ~uint64_t{1};
                const Pair pair = wide ? Pair(of_two(even), of_two(even + 1))
                                       : Pair(uniform(bits[even]), uniform(bits[even + 1]));
                double value = order.mean + order.deviation * (i & 1 ? pair.second : pair.first);
                if (exponential) value = std::exp(value);
                wide ? put(order.to, at, value) : put(order.to, at, static_cast<float>(value));
            }
        }
    }
}
void write_quasi(Kind kind, const Order& order, uint64_t at,
                 const simgpu_libraries::curand::QuasiNumber& number) {
    const bool wide = kind == NORMAL_DOUBLE || kind == LOG_NORMAL_DOUBLE;
    switch (kind) {
        case BITS:
            return put(order.to, at, number.half());
        case LONG_BITS:
            return put(order.to, at, number.point);
        case UNIFORM:
            return put(order.to, at, number.uniform());
        case UNIFORM_DOUBLE:
            return put(order.to, at, number.uniform_double());
        case POISSON:
            return put(order.to, at,
                       simgpu_libraries::curand::poisson_quantile(order.mean, number.middle(true)));
        default: {
            double value =
                order.mean + order.deviation * simgpu_libraries::curand::normal_quantile(number.middle(wide));
            if (kind == LOG_NORMAL || kind == LOG_NORMAL_DOUBLE) value = std::exp(value);
            wide ? put(order.to, at, value) : put(order.to, at, static_cast<float>(value));
        }
    }
}

// The numbers of one dimension stand together, those of the next behind them.
int generate_quasi(StreamHandle& handle, Generator& generator, Kind kind, const Order& order) {
    const GeneratorSettings settings = generator;
    const uint64_t points = order.count / settings.dimensions(), begin = settings.offset + generator.position;
    generator.position += points;
    const auto piece = [=](uint64_t number, const Access& access) {
        const uint64_t first = number * AT_ONCE, end = std::min(first + AT_ONCE, order.count);
        access.check(order.to + first * bytes_of(kind), (end - first) * bytes_of(kind), true, "the output");
        for (uint64_t at = first; at < end;) {
            const auto dimension = static_cast<uint32_t>(at / points);
            const bool scrambled = is_scrambled(settings.type), wide = is_long(settings.type);
            const Directions directions =
                scrambled ? scrambled_directions(dimension) : sobol_directions(dimension);
            const uint64_t ones = wide ? ~uint64_t{0} : ~uint64_t{0} << 32, last = (dimension + 1) * points;
            uint64_t index = begin + at % points;
            uint64_t point = (wide ? sobol_point(directions, index)
                                   : sobol_point(directions, static_cast<uint32_t>(index))) ^
                             (scrambled ? scramble_constant(dimension) : 0);
            for (; at < std::min(end, last); ++at) {
                write_quasi(kind, order, at, {point & ones, wide});
                const uint64_t zeros = ~index++, last_bit = wide ? 63 : 31;
                point ^= directions[std::min<uint64_t>(
                    zeros ? static_cast<uint64_t>(__builtin_ctzll(zeros)) : 63, last_bit)];
            }
        }
    };
    const char* const name = kind == LONG_BITS ? "curandGenerateLongLong" : "curandGenerate";
    return status_of(submit(handle.stream, name, (order.count - 1) / AT_ONCE + 1, piece));
}
}  // namespace

int create(void** place, int) {
    static auto* const context = driver_function<CUresult(CUcontext*)>("cuCtxGetCurrent");
    CUcontext current = nullptr;
    if (!on_simulated_device() || !context || context(&current) != CUDA_SUCCESS || !current)
        return INITIALIZATION_FAILED;
    *place = keep_handle(new StreamHandle);
    return SUCCESS;
}
int destroy(void* generator) {
    StreamHandle* const own = drop_handle(generator);
    delete own;  // what was submitted knows all that it needs
    return own ? SUCCESS : NOT_INITIALIZED;
}

int generate(StreamHandle& handle, Generator& generator, Kind kind, const Order& order) {
    if (is_quasi(generator.type)) return generate_quasi(handle, generator, kind, order);
    const uint64_t each = bytes_of(kind) == 4 && kind != POISSON ? 1 : 2;  // numbers of 32 bits
    const GeneratorSettings settings = generator;
    const uint64_t begin = settings.offset + generator.position;
    generator.position += order.count * each;
    const auto piece = [=](uint64_t number, const Access& access) {
        const uint64_t first = number * AT_ONCE, count = std::min(AT_ONCE, order.count - first);
        access.check(order.to + first * bytes_of(kind), count * bytes_of(kind), true, "the output");
        Room<uint32_t> bits(count * each);
        simgpu_libraries::curand::fill(settings, begin + first * each, bits.data(), bits.size());
        write(kind, order, first, count, bits.data(), settings.seed);
    };
    return status_of(submit(handle.stream, "curandGenerate", (order.count - 1) / AT_ONCE + 1, piece));
}

}  // namespace gpukernel::libraries::curand
