#!/bin/sh
# Prints a Clang that can build the fuzzers: version 15 or newer, with the runtimes of libFuzzer, AddressSanitizer and
# UndefinedBehaviorSanitizer.  Where there is none it says how to get one, and fails.
set -u

# A program that needs what the fuzzers need: half precision converted by the processor (f16c, part of x86-64-v3), 128-bit
# products checked by a sanitizer, and the standard library as C++20 has it.
probe='
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#if __clang_major__ < 15
#error "too old"
#endif
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    std::span<const uint8_t> bytes(data, size);
    _Float16 half = 0;
    if (bytes.size() >= sizeof half) std::memcpy(&half, bytes.data(), sizeof half);
    const __int128 product = static_cast<__int128>(static_cast<float>(half)) * std::bit_width(size);
    return product < 0 ? -1 : 0;
}
'

for version in "" -22 -21 -20 -19 -18 -17 -16 -15; do
    clang=$(command -v "clang++$version") || continue
    if printf '%s' "$probe" | "$clang" -x c++ -std=gnu++20 -march=x86-64-v3 -fsanitize=fuzzer,address,undefined \
        -o /dev/null - 2>/dev/null; then
        echo "$clang"
        exit 0
    fi
done
echo "No Clang with libFuzzer was found, so the fuzzers are left out (Debian, Ubuntu:" \
    "sudo apt-get install clang-19 libclang-rt-19-dev)." >&2
exit 1
