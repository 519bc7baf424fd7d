// A program of this folder checks itself: it prints "ok", or the line that is wrong.
#pragma once
#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                \
    do {                                                                \
        if (!(condition)) {                                             \
            std::printf("%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                               \
        }                                                               \
    } while (0)
#define OK(call)                                                                                   \
    do {                                                                                           \
        const cudaError_t error_ = (call);                                                         \
        if (error_ != cudaSuccess) {                                                               \
            std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)
#define FAILS(call, wanted)                                                                      \
    do {                                                                                         \
        const cudaError_t error_ = (call);                                                       \
        if (error_ != (wanted)) {                                                                \
            std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(error_)); \
            std::exit(1);                                                                        \
        }                                                                                        \
    } while (0)
