// The numbers by which program and worker name a library, and what every call of one begins with.
#pragma once

#include <cstdint>

namespace gpukernel::libraries {

enum Number : uint32_t {
    CUBLAS = 1,
    CUBLASLT = 2,
    CUDNN = 3,
    CUFFT = 4,
    CUSOLVER = 5,
    CUSPARSE = 6,
    CURAND = 7
};
constexpr uint32_t CUDNN_MAJOR = 9;

// With the version in the name of the library that the program has loaded.
constexpr uint32_t library_number(Number library, uint32_t version) { return library | version << 16; }
// The major version of CUDA that this library is of; 0 for one that nobody knows.
constexpr uint32_t cuda_of(uint32_t number) {
    const uint32_t version = number >> 16;
    const auto one_of = [version](uint32_t first, uint32_t last, uint32_t later) {
        return version >= first && version <= last ? version + later : 0;
    };
    switch (number & 0xffff) {
        case CUBLAS:
        case CUBLASLT:
            return one_of(11, 13, 0);
        case CUFFT:
            return one_of(10, 12, 1);
        case CUSOLVER:
            return one_of(11, 12, 1);
        case CUSPARSE:  // .12 is CUDA 13's, too
            return one_of(11, 12, 0);
        case CURAND:
            return one_of(10, 10, 2);
        case CUDNN:  // of CUDA 12 and 13, and which of them matters for a message only
            return one_of(CUDNN_MAJOR, CUDNN_MAJOR, 3);
        default:
            return 0;
    }
}

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
