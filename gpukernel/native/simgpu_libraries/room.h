// The memory of the host that a library's computation takes beside the device's own: copies, sums, tables.
//
// All of it counts against the slice's host memory for as long as it is there, whatever thread takes it.
// What is beyond the slice's limit is no memory (std::bad_alloc): the call is refused, or the work in the
// stream ends as a kernel does that the host has no memory for.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace gpukernel::simgpu_libraries {

bool take_room(uint64_t bytes);
void give_back_room(uint64_t bytes);

template <class T>
struct Charged {
    using value_type = T;
    Charged() = default;
    template <class Other>
    Charged(const Charged<Other>&) {}  // NOLINT(google-explicit-constructor): containers convert it
    T* allocate(size_t count) {
        if (count > SIZE_MAX / sizeof(T) || !take_room(count * sizeof(T))) throw std::bad_alloc();
        try {
            return std::allocator<T>().allocate(count);
        } catch (...) {
            give_back_room(count * sizeof(T));
            throw;
        }
    }
    void deallocate(T* at, size_t count) {
        std::allocator<T>().deallocate(at, count);
        give_back_room(count * sizeof(T));
    }
    bool operator==(const Charged&) const = default;
};

template <class T>
using Room = std::vector<T, Charged<T>>;

}  // namespace gpukernel::simgpu_libraries
