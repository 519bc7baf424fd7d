// What the calls of cuSPARSE that have plain arrays share: a call's stream, and arrays as they lie on the
// device.
#pragma once

#include <cstring>
#include <vector>

#include "libraries/handles.h"
#include "simgpu_libraries/cusparse/elements.h"
#include "simgpu_libraries/device_work.h"

namespace gpukernel::simgpu_libraries::cusparse {

using Handle = libraries::StreamHandle;
constexpr int64_t POINTS_AT_ONCE = 1 << 15;

struct SparseContext {
    CUstream stream;
    const char* name;
    SparseContext(const Handle& handle, const char* name) : stream(handle.stream), name(name) {}
};
using Context = SparseContext;  // as generated code calls it

inline int submit(const Context& context, uint64_t pieces, Piece piece, uint64_t needed = 0) {
    return libraries::status_of(
        simgpu_libraries::submit(context.stream, context.name, pieces, std::move(piece), needed));
}

template <class T>
Room<T> copied(const Access& access, uint64_t address, int64_t count, const char* what) {
    access.check(address, static_cast<uint64_t>(count) * sizeof(T), false, what);
    Room<T> values(static_cast<size_t>(count));
    if (count) std::memcpy(values.data(), reinterpret_cast<const void*>(address), values.size() * sizeof(T));
    return values;
}
template <class T>
void put(const Access& access, uint64_t address, const Room<T>& values, const char* what) {
    access.check(address, values.size() * sizeof(T), true, what);
    if (!values.empty())
        std::memcpy(reinterpret_cast<void*>(address), values.data(), values.size() * sizeof(T));
}

}  // namespace gpukernel::simgpu_libraries::cusparse
