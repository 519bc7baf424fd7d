// The discrete Fourier transform of one line of numbers, of any length, in double precision.
//
// Lengths of small prime factors are transformed factor by factor (Stockham's order, so nothing is permuted
// at the end); others as a convolution with a chirp (Bluestein).  Roots of unity are computed once a line's
// length, each from sine and cosine of an exactly reduced angle.
#pragma once

#include <complex>
#include <cstdint>
#include <memory>
#include <vector>

#include "simgpu_libraries/room.h"

namespace gpukernel::simgpu_libraries::cufft {

using Number = std::complex<double>;

class Line {
  public:
    explicit Line(int64_t n);
    // Replaces `data` by its forward transform; `scratch` has room for `scratch_size()` numbers.
    void forward(Number* data, Number* scratch) const;
    int64_t scratch_size() const { return chirp_.empty() ? n_ : 2 * padded_->n_; }
    // Of the host's memory: the tables of a line of `n`, and what a transform needs.
    static uint64_t table_bytes(int64_t n);
    static uint64_t work_bytes(int64_t n);

  private:
    void by_factors(Number* data, Number* scratch) const;
    void as_convolution(Number* data, Number* scratch) const;

    int64_t n_;
    Room<int> factors_;
    Room<Number> roots_;  // exp(-2 pi i k / n)
    // Where a factor is too large: exp(-pi i k² / n), and the transform of its conjugate as a filter.
    Room<Number> chirp_, filter_;
    std::unique_ptr<Line> padded_;
};

}  // namespace gpukernel::simgpu_libraries::cufft
