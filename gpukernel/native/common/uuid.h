// A device's UUID as text, "GPU-01234567-89ab-cdef-0123-456789abcdef", as CUDA_VISIBLE_DEVICES and NVML have
// it.
#pragma once

#include <cstdio>
#include <string>

namespace gpukernel {

inline std::string uuid_text(const char (&bytes)[16]) {
    std::string text = "GPU-";
    for (int i = 0; i < 16; ++i) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(bytes[i]));
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += digits;
    }
    return text;
}

}  // namespace gpukernel
