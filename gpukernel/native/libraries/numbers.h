// The numbers by which program and worker name a library, and what every call of one begins with.
#pragma once

#include <cstdint>

namespace gpukernel::libraries {

enum Number : uint32_t { CUBLAS = 1, CUBLASLT = 2 };
constexpr uint32_t MAJORS[] = {11, 12, 13};

// With the major version that the program was built with.
constexpr uint32_t library_number(Number library, uint32_t major) { return library | major << 16; }

// Functions that no table has: they make and end a library's handle, whose number is their only argument.
constexpr uint32_t CREATE = 0xfff0, DESTROY = 0xfff1;

// How a handle of cuBLAS is set, in one word.
struct Modes {
    int pointer_mode, atomics, math_mode, multiprocessors;
    uint64_t word() const {
        return (static_cast<uint64_t>(pointer_mode) & 1) | (static_cast<uint64_t>(atomics) & 1) << 1 |
               (static_cast<uint64_t>(math_mode) & 0xffff) << 16 |
               static_cast<uint64_t>(static_cast<uint32_t>(multiprocessors)) << 32;
    }
    static Modes of(uint64_t word) {
        return {static_cast<int>(word & 1), static_cast<int>(word >> 1 & 1),
                static_cast<int>(word >> 16 & 0xffff), static_cast<int>(word >> 32)};
    }
};

}  // namespace gpukernel::libraries
