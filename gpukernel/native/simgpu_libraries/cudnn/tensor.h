// A tensor on the simulated device, and its elements as numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "libraries/cudnn/handle.h"
#include "simgpu_libraries/device_work.h"
#include "simgpu_libraries/elements.h"

namespace gpukernel::simgpu_libraries::cudnn {

using namespace libraries::cudnn;  // NOLINT: the library's own numbers

struct Tensor {
    int type = FLOAT, rank = 0;
    int64_t extent[MOST_DIMENSIONS] = {}, stride[MOST_DIMENSIONS] = {};
    uint64_t address = 0;

    int64_t count() const {
        int64_t all = 1;
        for (int i = 0; i < rank; ++i) all *= extent[i];
        return all;
    }
    uint64_t bytes() const {  // from the first element to behind the last
        int64_t last = 0;
        for (int i = 0; i < rank; ++i) last += (extent[i] - 1) * stride[i];
        return static_cast<uint64_t>(last + 1) * element_bytes(type);
    }
    // Whether its numbers make sense: the volume and the bytes are far from overflow.
    bool valid() const {
        if (rank < 1 || rank > MOST_DIMENSIONS || !element_bytes(type)) return false;
        __int128 last = 0, volume = 1;
        for (int i = 0; i < rank; ++i) {
            if (extent[i] <= 0 || stride[i] < 0) return false;
            last += static_cast<__int128>(extent[i] - 1) * stride[i];
            volume *= extent[i];
            if (last >> 44 || volume >> 44) return false;
        }
        return true;
    }
    // Whether no two elements share a place, as far as it is easily seen: each stride steps over what has
    // less.
    bool lies_apart() const {
        int order[MOST_DIMENSIONS];
        for (int i = 0; i < rank; ++i) order[i] = i;
        std::sort(order, order + rank, [&](int a, int b) { return stride[a] < stride[b]; });
        int64_t covered = 1;
        for (int i = 0; i < rank; ++i) {
            if (extent[order[i]] == 1) continue;
            if (stride[order[i]] < covered) return false;
            covered = stride[order[i]] * extent[order[i]];
        }
        return true;
    }
    void check(const Access& access, bool writing, const char* what) const {
        if (address >> 63) throw OutOfBounds{address, bytes(), what};
        access.check(address, bytes(), writing, what);
    }
    bool same_extents(const Tensor& other) const {
        return rank == other.rank && std::equal(extent, extent + rank, other.extent);
    }
    // Whether it can stand where `other` is wanted: its extents are the same, or 1.
    bool spreads_to(const Tensor& other) const {
        if (rank != other.rank) return false;
        for (int i = 0; i < rank; ++i)
            if (extent[i] != other.extent[i] && extent[i] != 1) return false;
        return true;
    }
};

// How elements of one type are stored.
template <int TYPE>
struct Element;
template <class Stored>
struct Plain {
    using Type = Stored;
    template <class Number>
    static Number get(Stored value) {
        return static_cast<Number>(value);
    }
    template <class Number>
    static Stored put(Number value) {
        return static_cast<Stored>(value);
    }
};
template <class Stored>
struct Whole : Plain<Stored> {  // rounded to nearest, saturated
    template <class Number>
    static Stored put(Number value) {
        if (std::isnan(value)) return 0;
        const double rounded = std::nearbyint(static_cast<double>(value));
        if (rounded <= static_cast<double>(std::numeric_limits<Stored>::min()))
            return std::numeric_limits<Stored>::min();
        if (rounded >= static_cast<double>(std::numeric_limits<Stored>::max()))
            return std::numeric_limits<Stored>::max();
        return static_cast<Stored>(rounded);
    }
};
template <>
struct Element<FLOAT> : Plain<float> {};
template <>
struct Element<DOUBLE> : Plain<double> {};
template <>
struct Element<INT8> : Whole<int8_t> {};
template <>
struct Element<UINT8> : Whole<uint8_t> {};
template <>
struct Element<INT32> : Whole<int32_t> {};
template <>
struct Element<INT64> : Whole<int64_t> {};
template <>
struct Element<BOOLEAN> : Plain<uint8_t> {
    template <class Number>
    static uint8_t put(Number value) {
        return value != 0;
    }
};
template <>
struct Element<HALF> {
    using Type = uint16_t;
    template <class Number>
    static Number get(uint16_t value) {
        return static_cast<Number>(from_half(value));
    }
    template <class Number>
    static uint16_t put(Number value) {
        return to_half(static_cast<float>(value));
    }
};
template <>
struct Element<BFLOAT16> {
    using Type = uint16_t;
    template <class Number>
    static Number get(uint16_t value) {
        return static_cast<Number>(from_bfloat(value));
    }
    template <class Number>
    static uint16_t put(Number value) {
        return to_bfloat(static_cast<float>(value));
    }
};

// Calls `function` with the Element of a type that was found valid.
template <class Function>
auto with_element(int type, Function function) {
    switch (type) {
        case DOUBLE:
            return function(Element<DOUBLE>{});
        case HALF:
            return function(Element<HALF>{});
        case BFLOAT16:
            return function(Element<BFLOAT16>{});
        case INT8:
            return function(Element<INT8>{});
        case UINT8:
            return function(Element<UINT8>{});
        case INT32:
            return function(Element<INT32>{});
        case INT64:
            return function(Element<INT64>{});
        case BOOLEAN:
            return function(Element<BOOLEAN>{});
        default:
            return function(Element<FLOAT>{});
    }
}

// One element, by its place among all.
inline double get(const Tensor& of, int64_t offset) {
    if (of.type == FLOAT) return static_cast<double>(reinterpret_cast<const float*>(of.address)[offset]);
    return with_element(of.type, [&]<class E>(E) {
        return E::template get<double>(reinterpret_cast<const typename E::Type*>(of.address)[offset]);
    });
}
inline void put(const Tensor& of, int64_t offset, double value) {
    if (of.type == FLOAT) {
        reinterpret_cast<float*>(of.address)[offset] = static_cast<float>(value);
        return;
    }
    with_element(of.type, [&]<class E>(E) {
        reinterpret_cast<typename E::Type*>(of.address)[offset] = E::put(value);
    });
}
// value * alpha + beta * what was there, which is not read where beta is 0.
inline void blend(const Tensor& of, int64_t offset, double value, double alpha, double beta) {
    put(of, offset, beta != 0 ? alpha * value + beta * get(of, offset) : alpha * value);
}

// Walks over elements of a volume in order, with the places of several tensors.
template <int TENSORS>
class Walk {
  public:
    Walk(const Tensor& volume, const Tensor* const (&tensors)[TENSORS], int64_t first) : volume_(volume) {
        for (int t = 0; t < TENSORS; ++t) {
            offset[t] = 0;
            for (int i = 0; i < volume.rank; ++i)
                step_[t][i] = tensors[t] && tensors[t]->extent[i] > 1 ? tensors[t]->stride[i] : 0;
        }
        for (int i = volume.rank - 1; i >= 0; --i) {
            index[i] = first % volume.extent[i], first /= volume.extent[i];
            for (int t = 0; t < TENSORS; ++t) offset[t] += index[i] * step_[t][i];
        }
    }
    void next() {
        for (int i = volume_.rank - 1; i >= 0; --i) {
            for (int t = 0; t < TENSORS; ++t) offset[t] += step_[t][i];
            if (++index[i] < volume_.extent[i]) return;
            for (int t = 0; t < TENSORS; ++t) offset[t] -= step_[t][i] * volume_.extent[i];
            index[i] = 0;
        }
    }
    int64_t offset[TENSORS], index[MOST_DIMENSIONS] = {};

  private:
    const Tensor& volume_;
    int64_t step_[TENSORS][MOST_DIMENSIONS] = {};
};

// What every piece of work has: where it goes, and whose it is.
struct CallContext {
    CUstream stream;
    const char* name;
    CallContext(const Handle& handle, const char* name) : stream(handle.stream), name(name) {}
};
using Context = CallContext;  // as generated code calls it
inline int submit(const Context& context, uint64_t pieces, Piece piece, uint64_t needed = 0) {
    return status_of(
        simgpu_libraries::submit(context.stream, context.name, pieces, std::move(piece), needed));
}
constexpr uint64_t parts(int64_t n, int64_t of) {
    return n <= 0 ? 0 : (static_cast<uint64_t>(n) - 1) / static_cast<uint64_t>(of) + 1;
}

}  // namespace gpukernel::simgpu_libraries::cudnn
