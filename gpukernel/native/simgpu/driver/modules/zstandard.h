// Zstandard (RFC 8878), as nvcc compresses the PTX of fat binaries since CUDA 13.
#pragma once

#include <string>
#include <string_view>

namespace gpukernel::simgpu {

enum class Unpacked { done, damaged, no_library };

// Appends what the first frame of `in` holds, exactly `size` bytes, to the empty `out`.
Unpacked unpack_zstandard(std::string_view in, std::string& out, size_t size);

}  // namespace gpukernel::simgpu
