// The elements of a sparse matrix as they lie in device memory: each index is checked before it is followed.
#pragma once

#include <algorithm>
#include <complex>

#include "libraries/cusparse/types.h"
#include "simgpu_libraries/device_work.h"
#include "simgpu_libraries/elements.h"

namespace gpukernel::simgpu_libraries::cusparse {

using namespace libraries::cusparse;  // NOLINT: the library's own numbers
using Z = std::complex<double>;

inline uint64_t bytes_of(int64_t type) { return libraries::cublas::data_bytes(static_cast<int>(type)); }

// One array of indices, checked as a whole; `limit` is what each must be below.
class Indices {
  public:
    Indices(const Access& access, uint64_t address, int64_t type, int64_t base, int64_t count,
            const char* what)
        : address_(address), wide_(type == INDEX_64), base_(base), what_(what) {
        access.check(address, static_cast<uint64_t>(count) * index_bytes(type), false, what);
    }
    // The number at `i`, which must lie in [0, limit).
    int64_t below(int64_t i, int64_t limit) const {
        const int64_t value = get(i);
        if (value < 0 || value >= limit)
            throw OutOfBounds{address_ + static_cast<uint64_t>(i) * (wide_ ? 8 : 4), wide_ ? 8u : 4u, what_};
        return value;
    }

  private:
    int64_t get(int64_t i) const {
        if (wide_) {
            int64_t value;
            std::memcpy(&value, reinterpret_cast<const char*>(address_) + i * 8, sizeof value);
            return value == INT64_MIN ? -1 : value - base_;
        }
        int32_t value;
        std::memcpy(&value, reinterpret_cast<const char*>(address_) + i * 4, sizeof value);
        return static_cast<int64_t>(value) - base_;
    }
    uint64_t address_;
    bool wide_;
    int64_t base_;
    const char* what_;
};

// One matrix of a batch.
class Elements {
  public:
    Elements(const Access& access, const Sparse& s, int64_t batch, bool writing = false)
        : s_(s),
          lines_(s.format == CSR ? s.rows : s.columns),
          values_(s.values + at(batch * s.element_step, bytes_of(s.type))),
          major_(access,
                 s.major +
                     at(batch * (s.format == COO ? s.element_step : s.major_step), index_bytes(s.major_type)),
                 s.major_type, s.base, s.format == COO ? s.count : lines_ + 1, "the offsets or rows"),
          minor_(access, s.minor + at(batch * s.element_step, index_bytes(s.minor_type)), s.minor_type,
                 s.base, s.count, "the indices") {
        access.check(values_, at(s.count, bytes_of(s.type)), writing, "the values");
    }
    // Calls function(row, column, address of the value) for each element from `first` to before `end`.
    template <class Function>
    void each(int64_t first, int64_t end, Function function) const {
        const uint64_t size = bytes_of(s_.type);
        char* const values = reinterpret_cast<char*>(values_);
        if (s_.format == COO) {
            for (int64_t i = first; i < end; ++i)
                function(major_.below(i, s_.rows), minor_.below(i, s_.columns), values + at(i, size));
            return;
        }
        const int64_t across = s_.format == CSR ? s_.columns : s_.rows;
        int64_t line = line_of(first);
        for (int64_t i = first; i < end;) {
            const int64_t stop = std::min(end, major_.below(line + 1, s_.count + 1));
            for (; i < stop; ++i) {
                const int64_t other = minor_.below(i, across);
                s_.format == CSR ? function(line, other, values + at(i, size))
                                 : function(other, line, values + at(i, size));
            }
            if (++line >= lines_) return;
        }
    }
    template <class Function>
    void each(Function function) const {
        each(0, s_.count, function);
    }
    // Calls function(other index, address of the value) for each element of one row or column.
    template <class Function>
    void line(int64_t number, Function function) const {
        const uint64_t size = bytes_of(s_.type);
        const int64_t end = major_.below(number + 1, s_.count + 1),
                      across = s_.format == CSR ? s_.columns : s_.rows;
        for (int64_t i = major_.below(number, s_.count + 1); i < end; ++i)
            function(minor_.below(i, across), reinterpret_cast<char*>(values_) + at(i, size));
    }

  private:
    static uint64_t at(int64_t i, uint64_t size) { return static_cast<uint64_t>(i) * size; }
    // The line that element i lies in: the last whose offset is at most i.
    int64_t line_of(int64_t i) const {
        int64_t low = 0, high = lines_;
        while (low + 1 < high) {
            const int64_t middle = (low + high) / 2;
            (major_.below(middle, s_.count + 1) <= i ? low : high) = middle;
        }
        return low;
    }
    const Sparse& s_;
    int64_t lines_;
    uint64_t values_;
    Indices major_, minor_;
};

// Where element (row, column) of a dense matrix lies.
class Place {
  public:
    Place(const Access& access, const Dense& d, int64_t batch, bool writing, const char* what)
        : address_(d.values + static_cast<uint64_t>(batch * d.step) * bytes_of(d.type)),
          size_(bytes_of(d.type)),
          row_(d.order == BY_ROWS ? d.ld : 1),
          column_(d.order == BY_ROWS ? 1 : d.ld) {
        if (!d.rows || !d.columns) return;
        const auto last = static_cast<uint64_t>((d.rows - 1) * row_ + (d.columns - 1) * column_);
        access.check(address_, (last + 1) * size_, writing, what);
    }
    char* at(int64_t row, int64_t column) const {
        return reinterpret_cast<char*>(address_) +
               (row * row_ + column * column_) * static_cast<int64_t>(size_);
    }

  private:
    uint64_t address_, size_;
    int64_t row_, column_;
};

}  // namespace gpukernel::simgpu_libraries::cusparse
