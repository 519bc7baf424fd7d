// A memory copy whose speed does not depend on alignment.
//
// glibc's memcpy uses the processor's string instruction from some KiB on.  On several AMD processors that is
// four times slower where the destination's offset within a page is a little larger than the source's.
// Python's buffers (16 bytes into a page) and memory that begins with a page, such as a ring's or a device's,
// lie exactly so.  On other processors memcpy is faster than any alternative, by a quarter and more.
#pragma once

#include <emmintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gpukernel::wire {

inline void copy(void* to, const void* from, size_t size) {
    constexpr size_t LARGE = 2048, LINE = 64, STEP = 128;
    auto* out = static_cast<char*>(to);
    auto* in = static_cast<const char*>(from);
    if (size >= LARGE && __builtin_cpu_is("amd")) {
        const size_t head = -reinterpret_cast<uintptr_t>(out) % LINE;
        std::memcpy(out, in, head);
        for (out += head, in += head, size -= head; size >= STEP; out += STEP, in += STEP, size -= STEP) {
            __m128i words[STEP / 16];
            for (size_t i = 0; i < STEP / 16; ++i)
                words[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in) + i);
            for (size_t i = 0; i < STEP / 16; ++i)
                _mm_store_si128(reinterpret_cast<__m128i*>(out) + i, words[i]);
        }
    }
    std::memcpy(out, in, size);
}

}  // namespace gpukernel::wire
