// The driver API as this library reaches it: libcuda.so.1 is opened at the first call, and each function is
// asked of cuGetProcAddress in the form of one version.  A program that calls nothing of CUDA opens nothing.
#pragma once

#include <cuda.h>
// What it uses of cuda.h comes first.
#include <cudaTypedefs.h>

#include <atomic>
#include <bit>
#include <type_traits>

// cudaProfiler.h is in another wheel.
typedef CUresult(CUDAAPI* PFN_cuProfilerStart_v4000)(void);
typedef CUresult(CUDAAPI* PFN_cuProfilerStop_v4000)(void);

namespace gpukernel::cudart::driver {

// Returns the driver's function `name` as CUDA `version` knew it (12010 is 12.1), or null.
void* find(const char* name, int version);

// Returns what libcuda.so.1 exports by that name, or null.
void* symbol(const char* name);

// Returns the error of a function that the driver lacks, or of a driver that is not there.
CUresult missing(const char* name);

template <class Function>
class Entry;

template <class... Parameters>
class Entry<CUresult (*)(Parameters...)> {
  public:
    constexpr Entry(const char* name, int version) : name_(name), version_(version) {}

    CUresult operator()(Parameters... arguments) {
        Function function = function_.load(std::memory_order_relaxed);
        if (!function) {
            function = reinterpret_cast<Function>(find(name_, version_));
            if (!function) return missing(name_);
            function_.store(function, std::memory_order_relaxed);
        }
        return function(arguments...);
    }

  private:
    using Function = CUresult (*)(Parameters...);
    const char* name_;
    int version_;
    std::atomic<Function> function_{nullptr};
};

}  // namespace gpukernel::cudart::driver

#include "driver_calls.h"

namespace gpukernel::cudart {

// Returns `value` as the driver's type for the same thing: the two APIs differ in names alone.
template <class To, class From>
To as(From value) {
    if constexpr (std::is_class_v<To> || std::is_class_v<From>)
        return std::bit_cast<To>(value);
    else
        return (To)value;
}

template <class... Parameters, class... Arguments>
CUresult invoke(driver::Entry<CUresult (*)(Parameters...)>& entry, Arguments... arguments) {
    return entry(as<Parameters>(arguments)...);
}

}  // namespace gpukernel::cudart
