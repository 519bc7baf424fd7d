#!/bin/sh
# Prints a Clang that can build the fuzzers: 15 or newer, with libFuzzer and AddressSanitizer.  Where there is none it
# says how to get one and fails.
for version in "" -22 -21 -20 -19 -18 -17 -16 -15; do
    clang=$(command -v "clang++$version") || continue
    if printf '#include <cstdint>\n#include <cstddef>\n_Float16 half;\nextern "C" int LLVMFuzzerTestOneInput(const uint8_t*, size_t) { return 0; }\n' |
        "$clang" -x c++ -std=c++20 -fsanitize=fuzzer,address,undefined -o /dev/null - 2>/dev/null; then
        echo "$clang"
        exit 0
    fi
done
echo "No Clang with libFuzzer was found, so the fuzzers are left out (Debian, Ubuntu:" \
    "sudo apt-get install clang-19 libclang-rt-19-dev)." >&2
exit 1
