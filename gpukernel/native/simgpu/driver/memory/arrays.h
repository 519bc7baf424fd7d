// CUDA arrays: rows without padding in device memory.
#pragma once

#include "simgpu/driver/state.h"
#include "simgpu/texture.h"

namespace gpukernel::simgpu {

struct Mipmap;

struct Array {
    Device* device;
    CUDA_ARRAY3D_DESCRIPTOR shape;  // as the program described it
    uint64_t address;
    size_t row, slice, bytes;
    Mipmap* of = nullptr;  // a level: it goes with the whole

    size_t rows() const { return shape.Height ? shape.Height : 1; }
    size_t slices() const { return shape.Depth ? shape.Depth : 1; }
    size_t texel() const { return row / shape.Width; }
};

struct Mipmap {
    Device* device;
    CUDA_ARRAY3D_DESCRIPTOR shape;
    std::vector<std::unique_ptr<Array>> levels;
    uint64_t address;
};

struct TexelFormat {
    ChannelFormat channel;
    uint32_t bytes;     // of one channel
    uint32_t channels;  // that the format itself fixes; 0: as the descriptor says
    bool normalized;    // reads as a number, whatever the texture says
};
// CUDA_ERROR_NOT_SUPPORTED for planar and compressed formats, CUDA_ERROR_INVALID_VALUE for an unknown one.
CUresult format_of(CUarray_format format, unsigned channels, TexelFormat& found);

// The rows of an array that a copy names, as memory: `base` is the first byte of the copy.
CUresult rows_of(Device* device, CUarray handle, size_t x, size_t y, size_t z, size_t width, size_t height,
                 size_t depth, uint64_t& base, size_t& pitch, size_t& rows);

inline Array* array_of(CUarray handle) { return driver() ? driver()->arrays.get<Array>(handle) : nullptr; }
inline Mipmap* mipmap_of(CUmipmappedArray handle) {
    return driver() ? driver()->mipmaps.get<Mipmap>(handle) : nullptr;
}

}  // namespace gpukernel::simgpu
