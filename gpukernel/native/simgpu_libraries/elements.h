// The types of elements beside C++'s own: IEEE half, bfloat16 and the two of eight bits (OCP FP8), rounded to
// nearest, ties to even.
#pragma once

#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>

#include "libraries/cublas/types.h"

namespace gpukernel::simgpu_libraries {

namespace types = libraries::cublas;

inline float from_half(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, exponent = bits >> 10 & 31,
                   rest = bits & 0x3ff;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | rest << 13);
    if (exponent) return std::bit_cast<float>(sign | (exponent + 112) << 23 | rest << 13);
    return std::copysign(static_cast<float>(rest) * 0x1p-24f, std::bit_cast<float>(sign));
}

// A number with so many bits of fraction, the least normal exponent and the largest finite value; what is
// larger becomes `beyond`, NaN becomes `nan`.
template <int FRACTION, int LEAST>
uint32_t rounded(double value, double largest, uint32_t beyond, uint32_t nan, int bits) {
    const uint32_t sign = std::signbit(value) ? 1u << (bits - 1) : 0;
    const double size = std::fabs(value);
    if (std::isnan(value)) return sign | nan;
    if (size == 0) return sign;
    int exponent = std::isinf(size) ? 1024 : std::ilogb(size);
    if (exponent < LEAST) exponent = LEAST;
    if (exponent > 1000) return sign | beyond;
    const double unit = std::ldexp(1.0, exponent - FRACTION);
    const double units = std::nearbyint(size / unit);  // exact: a power of two
    if (units * unit > largest) return sign | beyond;
    // A carry into the exponent comes out by itself; below the least normal number the exponent's field is 0.
    const auto whole = static_cast<uint32_t>(units);
    return sign | ((static_cast<uint32_t>(exponent - LEAST) << FRACTION) + whole);
}

inline uint16_t to_half(float value) {
    return static_cast<uint16_t>(rounded<10, -14>(value, 65504, 0x7c00, 0x7fff, 16));
}
inline float from_bfloat(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
inline uint16_t to_bfloat(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float from_e4m3(uint8_t bits) {
    const int exponent = bits >> 3 & 15, rest = bits & 7;
    const float size = (bits & 0x7f) == 0x7f ? NAN
                       : exponent            ? std::ldexp(static_cast<float>(8 + rest), exponent - 10)
                                             : std::ldexp(static_cast<float>(rest), -9);
    return bits & 0x80 ? -size : size;
}
inline float from_e5m2(uint8_t bits) { return from_half(static_cast<uint16_t>(bits << 8)); }
// Conversions of results saturate, as cuBLAS's do.
inline uint8_t to_e4m3(float value) {
    return static_cast<uint8_t>(rounded<3, -6>(value, 448, 0x7e, 0x7f, 8));
}
inline uint8_t to_e5m2(float value) {
    return static_cast<uint8_t>(rounded<2, -14>(value, 57344, 0x7b, 0x7f, 8));
}

struct Half {
    uint16_t bits;
};

// Reads and writes one element of a type, as a number that holds it exactly where it can.
template <class Number>
Number load(const char* from, int type) {
    const auto as = [from]<class T>(T value) {
        std::memcpy(&value, from, sizeof value);
        return value;
    };
    switch (type) {
        case types::R_32F:
            return Number(as(0.0f));
        case types::R_16F:
            return Number(from_half(as(uint16_t{})));
        case types::R_16BF:
            return Number(from_bfloat(as(uint16_t{})));
        case types::R_8F_E4M3:
            return Number(from_e4m3(as(uint8_t{})));
        case types::R_8F_E5M2:
            return Number(from_e5m2(as(uint8_t{})));
        case types::R_8I:
            return Number(as(int8_t{}));
        case types::R_8U:
            return Number(as(uint8_t{}));
        default:
            break;
    }
    if constexpr (std::is_same_v<Number, std::complex<float>> ||
                  std::is_same_v<Number, std::complex<double>>) {
        if (type == types::C_32F) return Number(as(std::complex<float>{}));
        if (type == types::C_64F) return Number(as(std::complex<double>{}));
        return Number(static_cast<typename Number::value_type>(as(0.0)));
    } else {
        return type == types::R_32I ? Number(as(int32_t{})) : Number(as(0.0));
    }
}

template <class Number>
void store(char* to, int type, Number value) {
    const auto put = [to](auto bits) { std::memcpy(to, &bits, sizeof bits); };
    if constexpr (std::is_same_v<Number, std::complex<double>>) {
        if (type == types::C_32F) return put(std::complex<float>(value));
        if (type == types::C_64F) return put(value);
        return store(to, type, value.real());
    } else {
        const auto whole = [value](double least, double most) {
            return std::isnan(value) ? 0.0 : std::fmin(std::fmax(std::nearbyint(value), least), most);
        };
        switch (type) {
            case types::R_32F:
                return put(static_cast<float>(value));
            case types::R_64F:
                return put(static_cast<double>(value));
            case types::R_16F:
                return put(to_half(static_cast<float>(value)));
            case types::R_16BF:
                return put(to_bfloat(static_cast<float>(value)));
            case types::R_8F_E4M3:
                return put(to_e4m3(static_cast<float>(value)));
            case types::R_8F_E5M2:
                return put(to_e5m2(static_cast<float>(value)));
            case types::R_8I:
                return put(static_cast<int8_t>(whole(-128, 127)));
            case types::R_32I:
                return put(static_cast<int32_t>(whole(-2147483648.0, 2147483647.0)));
            default:
                return;
        }
    }
}

}  // namespace gpukernel::simgpu_libraries
