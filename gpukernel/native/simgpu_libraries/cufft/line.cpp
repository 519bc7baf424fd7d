#include "simgpu_libraries/cufft/line.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace gpukernel::simgpu_libraries::cufft {

namespace {
constexpr int LARGEST_FACTOR = 13;

// exp(-2 pi i k / n), from an angle of at most an eighth of a turn.
Number root(int64_t k, int64_t n) {
    const int64_t eighths = 8 * k / n;
    const auto turn = [n](int64_t part) {
        return 2 * std::numbers::pi * static_cast<double>(part) / static_cast<double>(n);
    };
    if (eighths == 0) return {std::cos(turn(k)), -std::sin(turn(k))};
    // The angle's distance from the nearest quarter, in units of 1 / (4 n) of a turn, is exact.
    const int64_t quarter = (4 * k + n / 2) / n, rest = 4 * k - quarter * n;
    const double angle = turn(rest) / 4;
    const double c = std::cos(angle), s = -std::sin(angle);
    switch (quarter & 3) {
        case 0:
            return {c, s};
        case 1:
            return {s, -c};
        case 2:
            return {-c, -s};
        default:
            return {-s, c};
    }
}

// Products of finite numbers, without what std::complex does for infinities.
Number times(Number a, Number b) {
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}

bool smooth(int64_t n, Room<int>* factors = nullptr) {
    for (const int factor : {4, 2, 3, 5, 7, 11, LARGEST_FACTOR})
        for (; n % factor == 0; n /= factor)
            if (factors) factors->push_back(factor);
    return n == 1;
}
int64_t padded_length(int64_t n) {
    int64_t length = 1;
    while (length < 2 * n - 1) length *= 2;
    return length;
}

// One factor: `s` transforms of length R * m, whose elements are s apart, become R * s of length m.
void pass_of_two(int64_t m, int64_t s, const Number* roots, const Number* x, Number* y) {
    for (int64_t p = 0; p < m; ++p) {
        const Number w = roots[p * s];
        for (int64_t q = 0; q < s; ++q) {
            const Number a = x[q + s * p], b = x[q + s * (p + m)];
            y[q + s * 2 * p] = a + b;
            y[q + s * (2 * p + 1)] = times(a - b, w);
        }
    }
}
void pass_of_four(int64_t m, int64_t s, const Number* roots, const Number* x, Number* y) {
    for (int64_t p = 0; p < m; ++p) {
        const Number w1 = roots[p * s], w2 = roots[2 * p * s], w3 = roots[3 * p * s];
        for (int64_t q = 0; q < s; ++q) {
            const Number a = x[q + s * p], b = x[q + s * (p + m)], c = x[q + s * (p + 2 * m)],
                         d = x[q + s * (p + 3 * m)];
            const Number sum = a + c, difference = a - c, other = b + d;
            const Number turned{(b - d).imag(), -(b - d).real()};  // times -i
            Number* const to = y + q + s * 4 * p;
            to[0] = sum + other;
            to[s] = times(difference + turned, w1);
            to[2 * s] = times(sum - other, w2);
            to[3 * s] = times(difference - turned, w3);
        }
    }
}
void pass_of(int r, int64_t m, int64_t s, int64_t n, const Number* roots, const Number* x, Number* y) {
    const int64_t step = n / r;  // between roots of this factor
    for (int64_t p = 0; p < m; ++p)
        for (int64_t q = 0; q < s; ++q)
            for (int i = 0; i < r; ++i) {
                Number sum = x[q + s * p];
                for (int j = 1; j < r; ++j) sum += times(x[q + s * (p + m * j)], roots[(i * j % r) * step]);
                y[q + s * (r * p + i)] = times(sum, roots[p * i * s]);
            }
}
}  // namespace

uint64_t Line::table_bytes(int64_t n) {
    const auto own = static_cast<uint64_t>(n) * sizeof(Number);
    return smooth(n) ? own : own + 2 * static_cast<uint64_t>(padded_length(n)) * sizeof(Number);
}
uint64_t Line::work_bytes(int64_t n) {
    return (static_cast<uint64_t>(n) + static_cast<uint64_t>(smooth(n) ? n : 2 * padded_length(n))) *
           sizeof(Number);
}

Line::Line(int64_t n) : n_(n) {
    if (smooth(n, &factors_)) {
        roots_.resize(static_cast<size_t>(n));
        for (int64_t k = 0; k < n; ++k) roots_[static_cast<size_t>(k)] = root(k, n);
        return;
    }
    chirp_.resize(static_cast<size_t>(n));
    for (int64_t k = 0; k < n; ++k) chirp_[static_cast<size_t>(k)] = root(k * k % (2 * n), 2 * n);
    padded_ = std::make_unique<Line>(padded_length(n));
    const auto length = static_cast<size_t>(padded_->n_);
    filter_.resize(length);
    for (size_t k = 0; k < static_cast<size_t>(n); ++k)
        filter_[k] = filter_[k ? length - k : 0] = std::conj(chirp_[k]);
    Room<Number> scratch(length);
    padded_->forward(filter_.data(), scratch.data());
    for (Number& one : filter_) one /= static_cast<double>(length);  // of the way back
}

void Line::forward(Number* data, Number* scratch) const {
    if (chirp_.empty())
        by_factors(data, scratch);
    else
        as_convolution(data, scratch);
}

void Line::by_factors(Number* data, Number* scratch) const {
    Number *x = data, *y = scratch;
    int64_t m = n_, s = 1;
    for (const int r : factors_) {
        m /= r;
        if (r == 2)
            pass_of_two(m, s, roots_.data(), x, y);
        else if (r == 4)
            pass_of_four(m, s, roots_.data(), x, y);
        else
            pass_of(r, m, s, n_, roots_.data(), x, y);
        s *= r;
        std::swap(x, y);
    }
    if (x != data) std::copy_n(x, n_, data);
}

void Line::as_convolution(Number* data, Number* scratch) const {
    const auto n = static_cast<size_t>(n_), length = static_cast<size_t>(padded_->n_);
    Number *const wide = scratch, *const rest = scratch + length;
    for (size_t k = 0; k < n; ++k) wide[k] = times(data[k], chirp_[k]);
    std::fill(wide + n, wide + length, Number());
    padded_->forward(wide, rest);
    // The way back is the way forward of the conjugate.
    for (size_t k = 0; k < length; ++k) wide[k] = std::conj(times(wide[k], filter_[k]));
    padded_->forward(wide, rest);
    for (size_t k = 0; k < n; ++k) data[k] = times(std::conj(wide[k]), chirp_[k]);
}

}  // namespace gpukernel::simgpu_libraries::cufft
