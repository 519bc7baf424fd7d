// OpenBLAS, which computes what it has on the simulated device's threads: one thread a call.
//
// It is loaded when a library makes its first handle: GPUKERNEL_OPENBLAS names the file (the wheel
// scipy-openblas32 has it), else the system's libopenblas.so.0 is used.
#pragma once

#include <algorithm>
#include <complex>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

namespace gpukernel::simgpu_libraries {

// False, after one sentence, where there is none or it lacks one of `functions`, Fortran's names such as
// "sgemm": each that its caller will use.
bool load_openblas(std::span<const char* const> functions);
// The same where the program has a context on a simulated device: what a handle needs.
bool can_make_handle(std::span<const char* const> functions);
// One of those; the process ends with a sentence where nobody had it looked for.
void* openblas(const char* name);

// The names of a function of all four types.
#define GPUKERNEL_BLAS_NAMES(name) "s" name, "d" name, "c" name, "z" name

template <class T>
constexpr char letter_of = 0;
template <>
inline constexpr char letter_of<float> = 's';
template <>
inline constexpr char letter_of<double> = 'd';
template <>
inline constexpr char letter_of<std::complex<float>> = 'c';
template <>
inline constexpr char letter_of<std::complex<double>> = 'z';

// A buffer of OpenBLAS's own, in which it packs matrices: it has one for each call at one time, and keeps
// them.  So there are no more calls at one time than processors, and the slice is charged for what a buffer
// has taken, for as long as its worker lives: 2 MiB, and 4 KiB for each row or column of the longest side
// (measured: 1 MiB and 3 KiB).  Throws std::bad_alloc.
class OpenblasBuffer {
  public:
    explicit OpenblasBuffer(int64_t longest);
    ~OpenblasBuffer();
    OpenblasBuffer(const OpenblasBuffer&) = delete;

  private:
    size_t slot_;
};

// One of its functions, with a buffer.  Sizes come first among its integers.
template <class... Arguments>
struct OpenblasFunction {
    void (*function)(Arguments...);
    void operator()(Arguments... arguments) const {
        int64_t longest = 0;
        int seen = 0;
        const auto look = [&](const auto& argument) {
            if constexpr (std::is_same_v<decltype(argument), const int* const&>)
                if (++seen <= 2) longest = std::max<int64_t>(longest, *argument);
        };
        (look(arguments), ...);
        const OpenblasBuffer buffer(longest);
        function(arguments...);
    }
};

// The function `name` for the type T, looked up once.
#define GPUKERNEL_BLAS(T, name, ...)                                                                 \
    ([]() -> ::gpukernel::simgpu_libraries::OpenblasFunction<__VA_ARGS__> {                          \
        static auto* const found = reinterpret_cast<void (*)(__VA_ARGS__)>(                          \
            ::gpukernel::simgpu_libraries::openblas((std::string(1, letter_of<T>) + name).c_str())); \
        return {found};                                                                              \
    }())

}  // namespace gpukernel::simgpu_libraries
