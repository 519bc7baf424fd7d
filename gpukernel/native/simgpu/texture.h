// Textures, read through a texture unit, and surfaces, read and written: memory with a shape, and the way
// from coordinates into it (CUDA C++ Programming Guide, "Texture Fetching"; PTX ISA 5.3).
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace gpukernel::simgpu {

enum class ChannelFormat : uint8_t { u8, u16, u32, s8, s16, s32, f16, f32 };
enum class Addressing : uint8_t { wrap, clamp, mirror, border };

struct TextureLevel {  // of a mipmapped array; every other resource has one
    uint64_t address;
    uint32_t width, height, depth;  // in texels; 1 where the shape has no such dimension; layers in depth
    uint64_t row, slice;            // bytes from one to the next
};

struct Texture {
    std::vector<TextureLevel> levels;
    ChannelFormat channel = ChannelFormat::f32;
    uint32_t channels = 1, texel_bytes = 4;
    bool layered = false, cube = false;
    bool linear_memory = false;  // tex1Dfetch: outside reads as zero, no filter, no addressing modes
    bool surface = false;        // a surface, not a texture: no sampler
    Addressing addressing[3] = {};
    bool normalized_coordinates = false,
         normalized_values = false;              // 8 and 16 bit integers as [0,1] or [-1,1]
    bool filter = false, filter_levels = false;  // linear, not point
    bool srgb = false, seamless = false;
    float border[4] = {};
    float level_bias = 0, least_level = 0, most_level = 0;

    bool floating() const {
        return normalized_values || channel == ChannelFormat::f16 || channel == ChannelFormat::f32;
    }
};

// By what kernels hold in their hands: an object's number, or the address of a texture or surface reference.
using Textures = std::unordered_map<uint64_t, std::shared_ptr<const Texture>>;

}  // namespace gpukernel::simgpu
