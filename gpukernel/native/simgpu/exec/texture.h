// A decoded texture or surface instruction, and how its handler finds what it works on.
#pragma once

#include "simgpu/texture.h"

namespace gpukernel::simgpu {

struct Warp;
struct Op;

enum class TextureUse : uint8_t {
    sample,
    level,
    gradient,
    gather,
    query,
    load,
    store,
    add,
    min,
    max,
    bit_and,
    bit_or
};
enum class Boundary : uint8_t { trap, clamp, zero };
enum class Query : uint8_t {
    width,
    height,
    depth,
    channel_type,
    channel_order,
    normalized,
    filter,
    addressing_0,
    addressing_1,
    addressing_2,
    array_size,
    levels,
    memory_layout,
};

// The operands beside the handle in Op::a; slots of registers or constants, as in Op.
struct TexturePlan {
    TextureUse use;
    uint8_t dimensions = 1;  // of a coordinate, without the layer
    bool layered = false, cube = false;
    bool integer_coordinates = false, half_results = false, is_signed = false;
    uint8_t component = 0;  // of a gather
    Boundary boundary = Boundary::trap;
    Query query = Query::width;
    uint8_t bytes = 4, elements = 4;  // of what goes to or comes from registers
    uint32_t value[4] = {};           // destinations, or what is stored
    uint32_t layer = 0, at[3] = {};
    uint32_t level = 0, dx[3] = {}, dy[3] = {};
    uint32_t resident = 0;  // a predicate that is always true, where asked for
    bool tells_resident = false;
};

// The texture that a lane's handle names, its memory still allocated; else throws the fault.
const Texture& texture_of(Warp& warp, const Op& op, int lane, uint64_t handle);
[[noreturn]] void outside_surface(Warp& warp, const Op& op, int lane, const Texture& surface,
                                  const int64_t (&at)[3], uint32_t size);
[[noreturn]] void misused_texture(Warp& warp, const Op& op, int lane, const char* what);
uint32_t answer_query(const Texture& texture, Query query, uint32_t level);
float from_srgb(float value);

}  // namespace gpukernel::simgpu
