#include "libcuda/jit_logs.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace gpukernel::libcuda {

JitLogs::JitLogs(unsigned count, CUjit_option* options, void** values) {
    for (unsigned i = 0; options && values && i < count; ++i) switch (options[i]) {
            case CU_JIT_ERROR_LOG_BUFFER:
                error_ = static_cast<char*>(values[i]);
                break;
            case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
                size_ = reinterpret_cast<uintptr_t>(values[i]) & 0xffffffff, size_out_ = &values[i];
                break;
            case CU_JIT_INFO_LOG_BUFFER:
                if (values[i]) *static_cast<char*>(values[i]) = 0;
                break;
            case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
                values[i] = nullptr;
                break;
            default:
                break;  // optimisation levels, targets: nothing to choose here
        }
}

bool JitLogs::write(std::string_view log) const {
    const size_t length = error_ && size_ ? std::min(log.size(), size_ - 1) : 0;
    if (length) std::memcpy(error_, log.data(), length);
    if (error_ && size_) error_[length] = 0;
    if (size_out_) *size_out_ = reinterpret_cast<void*>(length);
    return error_ || log.empty();
}

}  // namespace gpukernel::libcuda
