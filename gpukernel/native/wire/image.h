// How long a module image says it is.  A shim has only a pointer and must know how much to send; a driver
// reads as far as the image says, so a worker lets nothing pass that says more than came.
#pragma once

#include <cstddef>
#include <string_view>

namespace gpukernel::wire {

// Bytes of the image at `image`: text up to and with its NUL, a fat binary (also behind the wrapper that nvcc
// puts around it) or a cubin by its headers.  `data` is where it begins.  False where it says nothing
// sensible, or more than a frame may carry.
bool extent_of(const void* image, std::string_view& data);

// Whether everything that `image` says lies within its bytes.
bool whole(std::string_view image);

}  // namespace gpukernel::wire
