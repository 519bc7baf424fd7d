// Checked arithmetic on sizes that come from outside: a frame of the wire, an image, a launch, a copy's
// shape. Each function returns nothing where the true result does not fit.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <type_traits>

// For a function whose arithmetic wraps around by definition: the fuzzers' sanitizers leave it out.
#ifdef __clang__
#define GPUKERNEL_WRAPS __attribute__((no_sanitize("unsigned-integer-overflow")))
#else
#define GPUKERNEL_WRAPS
#endif

namespace gpukernel {

// In two's complement, where there is always one.
GPUKERNEL_WRAPS constexpr uint64_t wrapping_negative(uint64_t n) { return 0 - n; }
GPUKERNEL_WRAPS constexpr uint64_t wrapping_sum(uint64_t a, uint64_t b) { return a + b; }
GPUKERNEL_WRAPS constexpr uint64_t wrapping_product(uint64_t a, uint64_t b) { return a * b; }

template <std::unsigned_integral T>
constexpr std::optional<T> checked_sum(T a, std::type_identity_t<T> b) {
    T sum;
    if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
    return sum;
}

template <std::unsigned_integral T, class... Rest>
constexpr std::optional<T> checked_product(T a, std::type_identity_t<T> b, Rest... rest) {
    T product;
    if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
    if constexpr (sizeof...(rest) == 0)
        return product;
    else
        return checked_product<T>(product, rest...);
}

// The last byte's end of `rows` rows of `width`, `pitch` apart.
template <std::unsigned_integral T>
constexpr std::optional<T> checked_extent(T rows, std::type_identity_t<T> pitch,
                                          std::type_identity_t<T> width) {
    if (!rows) return T{0};
    const std::optional<T> before = checked_product<T>(rows - 1, pitch);
    return before ? checked_sum<T>(*before, width) : std::nullopt;
}

// Whether `size` bytes from `offset` on lie within the first `end`.
template <std::unsigned_integral T>
constexpr bool fits(T offset, std::type_identity_t<T> size, std::type_identity_t<T> end) {
    return offset <= end && size <= end - offset;
}

// The next multiple of `to`, which is not 0.
template <std::unsigned_integral T>
constexpr std::optional<T> checked_round_up(T n, std::type_identity_t<T> to) {
    const T over = n % to;
    return over ? checked_sum(n, to - over) : n;
}

}  // namespace gpukernel
