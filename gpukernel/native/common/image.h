// The extent of module images by their own headers.  A shim is given only a pointer and must know how much to
// send; a driver reads as far as the image says, so a worker refuses an image that says more than was sent.
#pragma once

#include <cstddef>
#include <string_view>

namespace gpukernel::wire {

constexpr size_t MAX_IMAGE = 512 << 20;  // bytes of the largest image

// Finds the bytes of the image at `image`: text up to and including its NUL; a fat binary, also inside the
// wrapper that nvcc adds, or a cubin by its headers.  False where the headers make no sense, or the image is
// larger than MAX_IMAGE.
bool extent_of(const void* image, std::string_view& data);

// Returns whether everything that the image's headers refer to lies within its bytes.
bool whole(std::string_view image);

}  // namespace gpukernel::wire
