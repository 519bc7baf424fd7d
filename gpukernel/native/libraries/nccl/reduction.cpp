#include "libraries/nccl/reduction.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace gpukernel::libraries::nccl {

namespace {
enum Operation { SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE };

// A float of up to 16 bits.  Without infinities, the greatest exponent has numbers, and all ones are no
// number.
template <class Word, int EXPONENT, int FRACTION, bool INFINITIES = true>
struct Narrow {
    Word word;

    static constexpr int BIAS = (1 << (EXPONENT - 1)) - 1, TOP = (1 << EXPONENT) - 1;
    static constexpr unsigned FRACTIONS = (1u << FRACTION) - 1;
    static constexpr unsigned SIGN = 1u << (EXPONENT + FRACTION);
    static constexpr unsigned INFINITE = static_cast<unsigned>(TOP) << FRACTION;
    static constexpr unsigned NOT_A_NUMBER = INFINITE | (INFINITIES ? 1u << (FRACTION - 1) : FRACTIONS);
    static constexpr unsigned GREATEST = INFINITIES ? INFINITE - 1 : NOT_A_NUMBER - 1;

    explicit operator double() const {
        const unsigned size = word & (SIGN - 1), fraction = word & FRACTIONS;
        const int exponent = static_cast<int>(size >> FRACTION);
        double value;
        if (INFINITIES ? exponent == TOP && fraction : size == NOT_A_NUMBER)
            value = std::numeric_limits<double>::quiet_NaN();
        else if (INFINITIES && exponent == TOP)
            value = std::numeric_limits<double>::infinity();
        else if (exponent)
            value = std::ldexp(FRACTIONS + 1 + fraction, exponent - BIAS - FRACTION);
        else
            value = std::ldexp(fraction, 1 - BIAS - FRACTION);
        return word & SIGN ? -value : value;
    }
    // To the nearest, of two to the even one.
    static Narrow of(double value) {
        const unsigned sign = std::signbit(value) ? SIGN : 0;
        if (std::isnan(value)) return {static_cast<Word>(sign | NOT_A_NUMBER)};
        constexpr unsigned MOST =
            sizeof(Word) == 1 ? GREATEST : INFINITE;  // CUDA's floats of 8 bits saturate
        unsigned size = MOST;
        if (std::isfinite(value) && value != 0) {
            const int exponent = std::max(std::ilogb(value), 1 - BIAS);
            const double units = std::nearbyint(std::ldexp(std::fabs(value), FRACTION - exponent));
            // What rounds up to the next power of two carries into the exponent by itself.
            const double bits = units + std::ldexp(exponent + BIAS - 1, FRACTION);
            size = static_cast<unsigned>(std::min<double>(bits, MOST));
        } else if (value == 0) {
            size = 0;
        }
        return {static_cast<Word>(sign | size)};
    }
};
using Half = Narrow<uint16_t, 5, 10>;
using BFloat16 = Narrow<uint16_t, 8, 7>;
using Float8E4M3 = Narrow<uint8_t, 4, 3, false>;
using Float8E5M2 = Narrow<uint8_t, 5, 2>;

template <class T>
T rounded(double value) {
    if constexpr (std::is_floating_point_v<T>)
        return static_cast<T>(value);
    else
        return T::of(value);
}

double both(double a, double b, int operation) {
    switch (operation) {
        case PRODUCT:
            return a * b;
        case MAXIMUM:
            return std::fmax(a, b);
        case MINIMUM:
            return std::fmin(a, b);
        default:
            return a + b;
    }
}
template <class T>
T both_integers(T a, T b, int operation) {
    switch (operation) {
        case PRODUCT:
            return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
        case MAXIMUM:
            return std::max(a, b);
        case MINIMUM:
            return std::min(a, b);
        default:
            return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    }
}

template <class T>
T element(const std::vector<char>& of, size_t index) {
    T value;
    std::memcpy(&value, of.data() + index * sizeof(T), sizeof value);
    return value;
}

template <class T>
void reduce(std::span<const std::vector<char>> ranks, size_t count, int operation, char* result) {
    for (size_t i = 0; i < count; ++i) {
        T value;
        if constexpr (std::is_integral_v<T>) {
            value = element<T>(ranks[0], i);
            for (const auto& rank : ranks.subspan(1))
                value = both_integers(value, element<T>(rank, i), operation);
            if (operation == AVERAGE) value = static_cast<T>(value / static_cast<T>(ranks.size()));
        } else {
            auto whole = static_cast<double>(element<T>(ranks[0], i));
            for (const auto& rank : ranks.subspan(1))
                whole = both(whole, static_cast<double>(element<T>(rank, i)), operation);
            value = rounded<T>(operation == AVERAGE ? whole / static_cast<double>(ranks.size()) : whole);
        }
        std::memcpy(result + i * sizeof value, &value, sizeof value);
    }
}
}  // namespace

std::vector<char> reduced(std::span<const std::vector<char>> ranks, size_t count, int type, int operation) {
    std::vector<char> result(count * BYTES[type]);
    constexpr void (*REDUCE[])(std::span<const std::vector<char>>, size_t, int, char*) = {
        reduce<int8_t>,  reduce<uint8_t>,  reduce<int32_t>,    reduce<uint32_t>,
        reduce<int64_t>, reduce<uint64_t>, reduce<Half>,       reduce<float>,
        reduce<double>,  reduce<BFloat16>, reduce<Float8E4M3>, reduce<Float8E5M2>};
    static_assert(sizeof REDUCE / sizeof *REDUCE == TYPES);
    REDUCE[type](ranks, count, operation, result.data());
    return result;
}

}  // namespace gpukernel::libraries::nccl
