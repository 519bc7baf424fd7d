// The slow path of textures and surfaces: handles are looked up, and a fault is described for people.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "simgpu/exec/block.h"
#include "simgpu/exec/texture.h"

namespace gpukernel::simgpu {
namespace {

bool alive(const DeviceMemory& memory, const Texture& texture) {
    return std::all_of(texture.levels.begin(), texture.levels.end(), [&](const TextureLevel& level) {
        const uint64_t bytes = (level.depth - 1) * level.slice + (level.height - 1) * level.row +
                               uint64_t{level.width} * texture.texel_bytes;
        return memory.valid(level.address, bytes);
    });
}

}  // namespace

const Texture& texture_of(Warp& warp, const Op& op, int lane, uint64_t handle) {
    if (warp.texture && warp.texture_handle == handle) return *warp.texture;
    const Textures* all = warp.launch->launch->textures.get();
    const auto found = all ? all->find(handle) : Textures::const_iterator{};
    if (!all || found == all->end()) {
        char number[32];
        std::snprintf(number, sizeof number, "0x%llx", static_cast<unsigned long long>(handle));
        throw Fault{Status::illegal_address, std::string("Invalid texture or surface ") +
                                                 place(warp, lane, op.line) + ": " + number +
                                                 " names none that was there at the launch"};
    }
    if (!alive(*warp.launch->memory, *found->second))
        throw Fault{Status::illegal_address, "Invalid texture or surface " + place(warp, lane, op.line) +
                                                 ": its memory has been freed"};
    warp.texture_handle = handle;
    warp.texture = found->second.get();
    return *warp.texture;
}

void outside_surface(Warp& warp, const Op& op, int lane, const Texture& surface, const int64_t (&at)[3],
                     uint32_t size) {
    static const char* const kinds[] = {"read", "write", "atomic"};
    const TextureLevel& level = surface.levels[0];
    std::string where = "byte " + std::to_string(at[0]),
                whole = std::to_string(uint64_t{level.width} * surface.texel_bytes) + " bytes";
    const bool layers = surface.layered || surface.cube;
    if (level.height > 1 || level.depth > 1) {
        where += ", row " + std::to_string(at[1]);
        whole += " by " + std::to_string(level.height) + " rows";
    }
    if (level.depth > 1) {
        where += (layers ? ", layer " : ", slice ") + std::to_string(at[2]);
        whole += " by " + std::to_string(level.depth) + (layers ? " layers" : " slices");
    }
    throw Fault{Status::illegal_address, std::string("Invalid surface ") +
                                             kinds[static_cast<int>(op.access)] + " of size " +
                                             std::to_string(size) + " bytes " + place(warp, lane, op.line) +
                                             ": " + where + " is out of bounds, the surface has " + whole};
}

void misused_texture(Warp& warp, const Op& op, int lane, const char* what) {
    throw Fault{Status::illegal_address,
                "Invalid texture or surface " + place(warp, lane, op.line) + ": " + what};
}

// The numbers are those of the table in PTX ISA 5.3.2, which are OpenCL's.
uint32_t answer_query(const Texture& texture, Query query, uint32_t number) {
    const TextureLevel& level = texture.levels[std::min<size_t>(number, texture.levels.size() - 1)];
    const bool normal = texture.normalized_values;
    switch (query) {
        case Query::width:
            return level.width;
        case Query::height:
            return level.height;
        case Query::depth:
            return texture.layered || texture.cube ? 1 : level.depth;
        case Query::array_size:
            return texture.layered ? level.depth / (texture.cube ? 6 : 1) : 0;
        case Query::levels:
            return static_cast<uint32_t>(texture.levels.size());
        case Query::channel_order:
            return texture.channels == 1 ? 0x10b0 : texture.channels == 2 ? 0x10b2 : 0x10b5;
        case Query::channel_type:
            switch (texture.channel) {
                case ChannelFormat::s8:
                    return normal ? 0x10d0 : 0x10d7;
                case ChannelFormat::s16:
                    return normal ? 0x10d1 : 0x10d8;
                case ChannelFormat::u8:
                    return normal ? 0x10d2 : 0x10da;
                case ChannelFormat::u16:
                    return normal ? 0x10d3 : 0x10db;
                case ChannelFormat::s32:
                    return 0x10d9;
                case ChannelFormat::u32:
                    return 0x10dc;
                case ChannelFormat::f16:
                    return 0x10dd;
                case ChannelFormat::f32:
                    return 0x10de;
            }
            return 0;
        case Query::normalized:
            return texture.normalized_coordinates;
        case Query::filter:
            return texture.filter;
        case Query::addressing_0:
        case Query::addressing_1:
        case Query::addressing_2:
            return static_cast<uint32_t>(
                texture.addressing[static_cast<int>(query) - static_cast<int>(Query::addressing_0)]);
        case Query::memory_layout:
            return texture.linear_memory ? 0 : 1;
    }
    return 0;
}

float from_srgb(float value) {  // IEC 61966-2-1
    return value <= 0.04045f ? value / 12.92f : std::pow((value + 0.055f) / 1.055f, 2.4f);
}

}  // namespace gpukernel::simgpu
