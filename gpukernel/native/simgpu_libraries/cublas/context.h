// What every implementation gets: the handle as it was when the function was called, scalars, and results.
#pragma once

#include <algorithm>
#include <complex>
#include <cstring>
#include <memory>
#include <type_traits>

#include "libraries/cublas/handle.h"
#include "simgpu_libraries/device_work.h"
#include "simgpu_libraries/elements.h"

namespace gpukernel::simgpu_libraries::cublas {

using libraries::cublas::Handle;
using namespace libraries::cublas;  // NOLINT: the library's own numbers

using S = float;
using D = double;
using C = std::complex<float>;
using Z = std::complex<double>;
using H = Half;
// By the letters in cuBLAS's names, where a parameter is called C.
using TypeS = S;
using TypeD = D;
using TypeC = C;
using TypeZ = Z;
using TypeH = H;

template <class T>
constexpr int type_of = std::is_same_v<T, S>   ? R_32F
                        : std::is_same_v<T, D> ? R_64F
                        : std::is_same_v<T, C> ? C_32F
                        : std::is_same_v<T, Z> ? C_64F
                                               : R_16F;
template <class T>
struct RealOf {
    using type = T;
};
template <class T>
struct RealOf<std::complex<T>> {
    using type = T;
};
template <class T>
using Real = typename RealOf<T>::type;
template <class T>
constexpr bool complex_type = !std::is_same_v<T, Real<T>>;

template <class T>
T conjugate(T value) {
    if constexpr (complex_type<T>)
        return std::conj(value);
    else
        return value;
}

struct Context {
    CUstream stream;
    const char* name;
    Context(const Handle& handle, const char* name) : stream(handle.settings.stream), name(name) {}
};

inline int submit(const Context& context, uint64_t pieces, Piece piece, uint64_t needed = 0) {
    return status_of(
        simgpu_libraries::submit(context.stream, context.name, pieces, std::move(piece), needed));
}

// A vector with an increment of 0 is as long as its function is told, whatever the memory: what needs memory
// of the host for each element, or must take them one by one, has an end.
inline int too_long(const Context& context, int64_t most) {
    libraries::complain(std::string(context.name) + ": more than " + std::to_string(most) +
                        " elements are not supported on a simulated device");
    return NOT_SUPPORTED;
}

// A scalar that is read now where it is on the host, and in the stream's order where it is on the device.
class Scalar {
  public:
    Scalar(bool on_host, const void* from, size_t bytes) : bytes_(std::min(bytes, sizeof value_)) {
        if (on_host)
            std::memcpy(value_, from, bytes_);
        else
            address_ = reinterpret_cast<uint64_t>(from);
    }
    Scalar(const Handle& handle, const void* from, size_t bytes)
        : Scalar(handle.settings.pointer_mode == HOST, from, bytes) {}
    template <class T>
    T get(const Access& access, size_t index = 0) const {
        if (address_) return access.read<T>(address_ + index * sizeof(T), "a scalar");
        T value;
        std::memcpy(&value, value_ + index * sizeof(T), sizeof value);
        return value;
    }
    // As a number, whatever its type is.
    template <class Number>
    Number get(const Access& access, int type) const {
        char bytes[16] = {};
        if (address_) {
            access.check(address_, data_bytes(type), false, "a scalar");
            std::memcpy(bytes, reinterpret_cast<const void*>(address_), data_bytes(type));
        } else {
            std::memcpy(bytes, value_, std::min(sizeof bytes, bytes_));
        }
        return load<Number>(bytes, type);
    }

  private:
    alignas(16) char value_[48] = {};
    size_t bytes_;
    uint64_t address_ = 0;
};

// Where one number goes: to the device in the stream's order, or to the host, for which the function waits.
class Result {
  public:
    Result(bool on_host, void* to, size_t bytes) : to_(to), bytes_(bytes), on_host_(on_host) {}
    Result(const Handle& handle, void* to, size_t bytes)
        : Result(handle.settings.pointer_mode == HOST, to, bytes) {}
    // Called once, by the last piece.
    template <class T>
    void set(const Access& access, T value) const {
        if (on_host_) {
            std::memcpy(kept_->bytes, &value, sizeof value);
        } else {
            access.check(reinterpret_cast<uint64_t>(to_), sizeof value, true, "the result");
            std::memcpy(to_, &value, sizeof value);
        }
    }
    void set_index(const Access& access, int64_t index) const {
        bytes_ == 4 ? set(access, static_cast<int32_t>(index)) : set(access, index);
    }
    // After everything was submitted.
    int finish(const Context& context, int status) const {
        return status ? status : status_of(finish(context.stream));
    }
    CUresult finish(CUstream stream) const {
        if (!on_host_) return CUDA_SUCCESS;
        if (const CUresult result = synchronize(stream); result != CUDA_SUCCESS) return result;
        std::memcpy(to_, kept_->bytes, bytes_);
        return CUDA_SUCCESS;
    }

  private:
    struct Kept {
        alignas(16) char bytes[16] = {};
    };
    void* to_;
    size_t bytes_;
    bool on_host_;
    std::shared_ptr<Kept> kept_ = std::make_shared<Kept>();
};

// A vector with its increment, which may be negative: then it begins at its end.
template <class T>
class Vector {
  public:
    Vector(uint64_t address, int64_t n, int64_t step) : address_(address), n_(n), step_(step) {}
    // The elements from `first` to before `end`, which are checked.
    void check(const Access& access, int64_t first, int64_t end, bool writing, const char* what) const {
        if (first >= end) return;
        const __int128 a = place(first), b = place(end - 1);
        const __int128 from = std::min(a, b), bytes = std::max(a, b) - from + sizeof(T);
        if (from < 0 || from >> 63 || bytes >> 63)
            throw OutOfBounds{address_, static_cast<uint64_t>(n_), what};
        access.check(static_cast<uint64_t>(from), static_cast<uint64_t>(bytes), writing, what);
    }
    T& operator[](int64_t i) const { return *reinterpret_cast<T*>(static_cast<uint64_t>(place(i))); }

  private:
    __int128 place(int64_t i) const {
        const __int128 index =
            step_ < 0 ? static_cast<__int128>(i - (n_ - 1)) * step_ : static_cast<__int128>(i) * step_;
        return static_cast<__int128>(address_) + index * static_cast<__int128>(sizeof(T));
    }
    uint64_t address_;
    int64_t n_, step_;
};

// A matrix in columns.
template <class T>
class Matrix {
  public:
    Matrix(uint64_t address, int64_t ld) : address_(address), ld_(ld) {}
    void check(const Access& access, int64_t row, int64_t column, int64_t rows, int64_t columns, bool writing,
               const char* what) const {
        if (rows <= 0 || columns <= 0) return;
        const __int128 from = static_cast<__int128>(address_) +
                              (static_cast<__int128>(column) * ld_ + row) * static_cast<__int128>(sizeof(T));
        const __int128 bytes =
            (static_cast<__int128>(columns - 1) * ld_ + rows) * static_cast<__int128>(sizeof(T));
        if (from >> 63 || bytes >> 63) throw OutOfBounds{address_, ~uint64_t{0}, what};
        access.check(static_cast<uint64_t>(from), static_cast<uint64_t>(bytes), writing, what);
    }
    T* at(int64_t row, int64_t column) const { return reinterpret_cast<T*>(address_) + column * ld_ + row; }
    int64_t ld() const { return ld_; }
    bool fits_openblas() const { return ld_ <= INT32_MAX; }

  private:
    uint64_t address_;
    int64_t ld_;
};

constexpr uint64_t parts(int64_t n, int64_t of) {
    return n <= 0 ? 0 : (static_cast<uint64_t>(n) - 1) / of + 1;
}

}  // namespace gpukernel::simgpu_libraries::cublas
