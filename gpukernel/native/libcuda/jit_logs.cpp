#include "libcuda/jit_logs.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace gpukernel::libcuda {

JitLogs::JitLogs(unsigned count, CUjit_option* options, void** values) {
    const auto bytes = [](void* value) { return reinterpret_cast<uintptr_t>(value) & 0xffffffff; };
    char* information = nullptr;
    size_t information_size = 0;
    for (unsigned i = 0; options && values && i < count; ++i) switch (options[i]) {
            case CU_JIT_ERROR_LOG_BUFFER:
                error_ = static_cast<char*>(values[i]);
                break;
            case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
                size_ = bytes(values[i]), size_out_ = &values[i];
                break;
            case CU_JIT_INFO_LOG_BUFFER:
                information = static_cast<char*>(values[i]);
                break;
            case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
                information_size = bytes(values[i]), values[i] = nullptr;
                break;
            case CU_JIT_MAX_REGISTERS:
                max_registers_ = static_cast<unsigned>(bytes(values[i]));
                break;
            default:
                break;  // optimisation levels, targets: nothing to choose here
        }
    if (information && information_size) *information = 0;
}

bool JitLogs::write(std::string_view log) const {
    const size_t length = error_ && size_ ? std::min(log.size(), size_ - 1) : 0;
    if (length) std::memcpy(error_, log.data(), length);
    if (error_ && size_) error_[length] = 0;
    if (size_out_) *size_out_ = reinterpret_cast<void*>(length);
    return error_ || log.empty();
}

}  // namespace gpukernel::libcuda
