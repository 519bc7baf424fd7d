// Texture and surface instructions (PTX ISA 9.7.10 and 9.7.11): coordinates to texels, and their filtering by
// the formulas of the CUDA C++ Programming Guide, "Texture Fetching".
#include "simgpu/exec/texture.h"

#include <cstring>

#include "simgpu/exec/handlers/arithmetic/half.h"
#include "simgpu/exec/handlers/tables.h"

namespace gpukernel::simgpu {
namespace {

struct Interpolation {  // one dimension of a sample: the two texels that it lies between, and how far
    s64 first, second;  // -1: in the border
    f32 weight;         // of the second, a multiple of 1/256
};
struct Bits {
    u32 channel[4];
};
struct Colour {
    f32 channel[4];
};

inline f32 as_float(u32 bits) { return std::bit_cast<f32>(bits); }
inline u32 as_bits(f32 value) { return std::bit_cast<u32>(value); }
// Coordinates come from programs: nothing, or too much, is no number of a texel, and harmless.
inline s64 floor_of(f32 x) {
    const f32 whole = __builtin_floorf(x);
    return whole > -1e9f && whole < 1e9f ? static_cast<s64>(whole) : 0;
}
inline s64 clamped(s64 i, s64 n) { return i < 0 ? 0 : i < n ? i : n - 1; }

// Weights have 8 bits of fraction, so that 1 is exact.
inline f32 fraction(f32 x) { return __builtin_floorf(x * 256.0f + 0.5f) / 256.0f; }

inline s64 addressed(Addressing mode, s64 i, s64 n) {
    if (i >= 0 && i < n) return i;
    if (mode == Addressing::wrap) return i < 0 ? i + n : i - n;
    return mode == Addressing::border ? -1 : clamped(i, n);
}

// A coordinate in texels, within or just outside [0, n]; then wrap and mirror have been applied to it.
inline f32 in_texels(const Texture& t, Addressing& mode, f32 x, u32 n) {
    if (x != x) x = 0;
    if (!t.normalized_coordinates) {
        if (mode != Addressing::border) mode = Addressing::clamp;  // the others need normalized coordinates
    } else {
        if (mode == Addressing::wrap || mode == Addressing::mirror) {
            const f32 whole = __builtin_floorf(x);
            f32 rest = x - whole;
            if (rest != rest) rest = 0;  // of an infinite coordinate
            if (mode == Addressing::mirror && __builtin_fmodf(whole, 2.0f) != 0) rest = 1.0f - rest;
            x = rest;
        }
        x *= static_cast<f32>(n);
    }
    const f32 most = static_cast<f32>(n) + 1.0f;
    return x < -2.0f ? -2.0f : x > most ? most : x;
}

Interpolation nearest(const Texture& t, int dimension, f32 x, u32 n) {
    Addressing mode = t.addressing[dimension];
    const s64 i = addressed(mode, floor_of(in_texels(t, mode, x, n)), n);
    return {i, i, 0};
}
Interpolation between(const Texture& t, int dimension, f32 x, u32 n) {
    Addressing mode = t.addressing[dimension];
    const f32 b = in_texels(t, mode, x, n) - 0.5f, whole = __builtin_floorf(b);
    const s64 i = floor_of(whole);
    return {addressed(mode, i, n), addressed(mode, i + 1, n), fraction(b - whole)};
}

template <class T>
inline T memory_at(u64 address, u32 n) {
    T value;
    memcpy(&value, reinterpret_cast<const char*>(address) + n * sizeof(T), sizeof(T));
    return value;
}

// One texel as 32 bits a channel: the element, or the number that it stands for.  What a texel lacks is
// (0, 0, 0, 1).
Bits texel(const Texture& t, const TextureLevel& l, s64 i, s64 j, s64 k) {
    const bool number = t.floating();
    Bits r{{0, 0, 0, number ? as_bits(1.0f) : 1u}};
    if ((i | j | k) < 0) {
        for (int n = 0; n < 4; ++n)
            r.channel[n] = number ? as_bits(t.border[n]) : static_cast<u32>(static_cast<s32>(t.border[n]));
        return r;
    }
    const u64 at = l.address + static_cast<u64>(k) * l.slice + static_cast<u64>(j) * l.row +
                   static_cast<u64>(i) * t.texel_bytes;
    for (u32 n = 0; n < t.channels; ++n) {
        u32& c = r.channel[n];
        switch (t.channel) {
            case ChannelFormat::u8:
                c = memory_at<u8>(at, n);
                if (t.normalized_values) {
                    const f32 value = static_cast<f32>(c) / 255.0f;
                    c = as_bits(t.srgb && n < 3 ? from_srgb(value) : value);
                }
                break;
            case ChannelFormat::u16:
                c = memory_at<u16>(at, n);
                if (t.normalized_values) c = as_bits(static_cast<f32>(c) / 65535.0f);
                break;
            case ChannelFormat::s8:
            case ChannelFormat::s16: {
                const bool narrow = t.channel == ChannelFormat::s8;
                const s32 value = narrow ? s32(memory_at<s8>(at, n)) : s32(memory_at<s16>(at, n));
                c = static_cast<u32>(value);
                if (t.normalized_values) {
                    const f32 part = static_cast<f32>(value) / (narrow ? 127.0f : 32767.0f);
                    c = as_bits(part < -1.0f ? -1.0f : part);
                }
                break;
            }
            case ChannelFormat::f16:
                c = as_bits(Half::get(memory_at<u16>(at, n)));
                break;
            default:
                c = memory_at<u32>(at, n);
        }
    }
    return r;
}

// --- cubes ---

struct Face {
    u32 number;
    f32 s, t;  // in [0, 1]
};
// The table of the guide's "Cubemap Textures".
Face face_of(f32 x, f32 y, f32 z) {
    const f32 ax = __builtin_fabsf(x), ay = __builtin_fabsf(y), az = __builtin_fabsf(z);
    f32 m, s, t;
    u32 number;
    if (ax >= ay && ax >= az) {
        number = x >= 0 ? 0 : 1, m = ax, s = x >= 0 ? -z : z, t = -y;
    } else if (ay >= az) {
        number = y >= 0 ? 2 : 3, m = ay, s = x, t = y >= 0 ? z : -z;
    } else {
        number = z >= 0 ? 4 : 5, m = az, s = z >= 0 ? x : -x, t = -y;
    }
    return {number, (s / m + 1) / 2, (t / m + 1) / 2};
}
Face beyond(u32 face, f32 s, f32 t) {  // where a place next to a face lies
    s = 2 * s - 1, t = 2 * t - 1;
    switch (face) {
        case 0:
            return face_of(1, -t, -s);
        case 1:
            return face_of(-1, -t, s);
        case 2:
            return face_of(s, 1, t);
        case 3:
            return face_of(s, -1, -t);
        case 4:
            return face_of(s, -t, 1);
        default:
            return face_of(-s, -t, -1);
    }
}
Bits cube_texel(const Texture& t, const TextureLevel& l, s64 i, s64 j, u32 cube, u32 face) {
    const s64 n = l.width;
    if (t.seamless && (i < 0 || j < 0 || i >= n || j >= n)) {
        const f32 size = static_cast<f32>(n);
        const Face f = beyond(face, (static_cast<f32>(i) + 0.5f) / size, (static_cast<f32>(j) + 0.5f) / size);
        face = f.number;
        i = floor_of(f.s * size), j = floor_of(f.t * size);
    }
    return texel(t, l, clamped(i, n), clamped(j, n), s64(cube) * 6 + face);
}

// --- samples ---

struct Coordinates {
    f32 at[3];  // or the bits of integers
    u32 layer;
};

// A sample's neighbourhood: two texels a dimension, of which those without weight are not read.
template <class Texel>
Colour blend_texels(int dimensions, const Interpolation* p, Texel one) {
    Colour sum{};
    for (int corner = 0; corner < 1 << dimensions; ++corner) {
        f32 weight = 1;
        s64 at[3] = {};
        for (int d = 0; d < dimensions; ++d) {
            const bool second = corner >> d & 1;
            weight *= second ? p[d].weight : 1.0f - p[d].weight;
            at[d] = second ? p[d].second : p[d].first;
        }
        if (weight == 0) continue;
        const Bits c = one(at);
        for (int n = 0; n < 4; ++n) sum.channel[n] += weight * as_float(c.channel[n]);
    }
    return sum;
}
inline Bits bits_of(const Colour& c) {
    return {{as_bits(c.channel[0]), as_bits(c.channel[1]), as_bits(c.channel[2]), as_bits(c.channel[3])}};
}

Bits sample_level(const Texture& t, const TextureLevel& l, const TexturePlan& plan, const Coordinates& c) {
    const u32 size[3] = {l.width, l.height, l.depth};
    if (plan.integer_coordinates) {  // texels by their number
        s64 at[3] = {};
        for (int d = 0; d < plan.dimensions; ++d) {
            const s32 i = std::bit_cast<s32>(c.at[d]);
            if (t.linear_memory && (i < 0 || static_cast<u32>(i) >= size[d])) return {};
            Addressing mode = t.addressing[d] == Addressing::border ? Addressing::border : Addressing::clamp;
            at[d] = addressed(mode, i, size[d]);
        }
        if (plan.layered) at[2] = clamped(c.layer, l.depth);
        return texel(t, l, at[0], at[1], at[2]);
    }
    const bool filter = t.filter && t.floating() && !t.linear_memory;
    if (plan.cube) {
        const Face f = face_of(c.at[0], c.at[1], c.at[2]);
        const u32 cube = plan.layered ? static_cast<u32>(clamped(c.layer, l.depth / 6)) : 0;
        const f32 n = static_cast<f32>(l.width);
        auto one = [&](const s64* at) { return cube_texel(t, l, at[0], at[1], cube, f.number); };
        if (!filter) {
            const s64 at[2] = {floor_of(f.s * n), floor_of(f.t * n)};
            return cube_texel(t, l, clamped(at[0], l.width), clamped(at[1], l.width), cube, f.number);
        }
        Interpolation p[2];
        for (int d = 0; d < 2; ++d) {
            const f32 b = (d ? f.t : f.s) * n - 0.5f, whole = __builtin_floorf(b);
            p[d] = {floor_of(whole), floor_of(whole) + 1, fraction(b - whole)};
        }
        return bits_of(blend_texels(2, p, one));
    }
    Interpolation p[3] = {};
    for (int d = 0; d < plan.dimensions; ++d)
        p[d] = filter ? between(t, d, c.at[d], size[d]) : nearest(t, d, c.at[d], size[d]);
    const s64 layer = plan.layered ? clamped(c.layer, l.depth) : 0;
    if (!filter) return texel(t, l, p[0].first, p[1].first, plan.layered ? layer : p[2].first);
    return bits_of(blend_texels(plan.dimensions, p, [&](const s64* at) {
        return texel(t, l, at[0], at[1], plan.layered ? layer : at[2]);
    }));
}

Bits sample(const Texture& t, const TexturePlan& plan, const Coordinates& c, f32 level) {
    const f32 last = static_cast<f32>(t.levels.size() - 1);
    if (last == 0) return sample_level(t, t.levels[0], plan, c);
    level += t.level_bias;
    if (!(level > t.least_level)) level = t.least_level;  // and not a number is the least
    if (level > t.most_level) level = t.most_level;
    level = level < 0 ? 0 : level > last ? last : level;
    if (!t.filter_levels || !t.floating())
        return sample_level(t, t.levels[static_cast<size_t>(level + 0.5f)], plan, c);
    const f32 whole = __builtin_floorf(level), weight = fraction(level - whole);
    Bits r = sample_level(t, t.levels[static_cast<size_t>(whole)], plan, c);
    if (weight == 0) return r;
    const Bits next = sample_level(t, t.levels[static_cast<size_t>(whole) + 1], plan, c);
    for (int n = 0; n < 4; ++n)
        r.channel[n] = as_bits((1.0f - weight) * as_float(r.channel[n]) + weight * as_float(next.channel[n]));
    return r;
}

// One channel of the four texels that a linear filter would read, counter-clockwise from the lower left.
Bits gather(const Texture& t, const TexturePlan& plan, const Coordinates& c) {
    const TextureLevel& l = t.levels[0];
    Bits texels[4];
    if (plan.cube) {
        const Face f = face_of(c.at[0], c.at[1], c.at[2]);
        const u32 cube = plan.layered ? static_cast<u32>(clamped(c.layer, l.depth / 6)) : 0;
        const f32 n = static_cast<f32>(l.width);
        const s64 i = floor_of(f.s * n - 0.5f), j = floor_of(f.t * n - 0.5f);
        texels[0] = cube_texel(t, l, i, j + 1, cube, f.number);
        texels[1] = cube_texel(t, l, i + 1, j + 1, cube, f.number);
        texels[2] = cube_texel(t, l, i + 1, j, cube, f.number);
        texels[3] = cube_texel(t, l, i, j, cube, f.number);
    } else {
        const Interpolation x = between(t, 0, c.at[0], l.width), y = between(t, 1, c.at[1], l.height);
        const s64 k = plan.layered ? clamped(c.layer, l.depth) : 0;
        texels[0] = texel(t, l, x.first, y.second, k);
        texels[1] = texel(t, l, x.second, y.second, k);
        texels[2] = texel(t, l, x.second, y.first, k);
        texels[3] = texel(t, l, x.first, y.first, k);
    }
    Bits r;
    for (int n = 0; n < 4; ++n) r.channel[n] = texels[n].channel[plan.component];
    return r;
}

// The level where neighbouring threads' samples are one texel apart.
f32 level_of(Warp& w, const Texture& t, const TexturePlan& plan, int i) {
    const TextureLevel& l = t.levels[0];
    const u32 size[3] = {l.width, plan.cube ? l.width : l.height, plan.cube ? l.width : l.depth};
    f32 along_x = 0, along_y = 0;
    for (int d = 0; d < plan.dimensions; ++d) {
        const f32 scale = t.normalized_coordinates ? static_cast<f32>(size[d]) : 1.0f;
        const f32 x = in<f32>(w, plan.dx[d])[i] * scale, y = in<f32>(w, plan.dy[d])[i] * scale;
        along_x += x * x, along_y += y * y;
    }
    return 0.5f * log2f(along_x > along_y ? along_x : along_y);
}

void check_shape(Warp& w, const Op& op, int lane, const Texture& t, const TexturePlan& plan) {
    const TextureLevel& l = t.levels[0];
    if (plan.cube && !(t.cube && l.depth >= 6)) misused_texture(w, op, lane, "it is no cubemap");
    if (t.surface && plan.use <= TextureUse::gather) misused_texture(w, op, lane, "it is a surface");
    if (!t.surface && plan.use >= TextureUse::load) misused_texture(w, op, lane, "it is no surface");
}

const TexturePlan& plan_of(const Warp& w, const Op& op) { return w.frame->function->textures[op.extra]; }

void put_results(Warp& w, const TexturePlan& plan, const u32 (&t)[4][kLanes]) {
    for (int n = 0; n < plan.elements; ++n) {
        if (plan.half_results) {
            u16* d = out<u16>(w, plan.value[n]);
            for (int i = 0; i < kLanes; ++i)
                if (w.exec >> i & 1) d[i] = Half::near(as_float(t[n][i]));
        } else {
            blend(out<u32>(w, plan.value[n]), t[n], w.exec);
        }
    }
    if (plan.tells_resident) out_pred(w, plan.resident, kFull);
}

void fetch(Warp& w, const Op& op) {
    const TexturePlan& plan = plan_of(w, op);
    alignas(64) u32 results[4][kLanes];
    for (u32 m = w.exec; m; m &= m - 1) {
        const int i = __builtin_ctz(m);
        const Texture& t = texture_of(w, op, i, in<u64>(w, op.a)[i]);
        check_shape(w, op, i, t, plan);
        Coordinates c{};
        for (int d = 0; d < plan.dimensions; ++d) c.at[d] = in<f32>(w, plan.at[d])[i];
        if (plan.layered) c.layer = in<u32>(w, plan.layer)[i];
        Bits r;
        if (plan.use == TextureUse::gather) {
            r = gather(t, plan, c);
        } else {
            f32 level = 0;
            if (plan.use == TextureUse::level)
                level = plan.integer_coordinates ? static_cast<f32>(in<s32>(w, plan.level)[i])
                                                 : in<f32>(w, plan.level)[i];
            if (plan.use == TextureUse::gradient) level = level_of(w, t, plan, i);
            r = sample(t, plan, c, level);
        }
        for (int n = 0; n < 4; ++n) results[n][i] = r.channel[n];
    }
    put_results(w, plan, results);
}

void query(Warp& w, const Op& op) {
    const TexturePlan& plan = plan_of(w, op);
    u32* d = out<u32>(w, plan.value[0]);
    for (u32 m = w.exec; m; m &= m - 1) {
        const int i = __builtin_ctz(m);
        const Texture& t = texture_of(w, op, i, in<u64>(w, op.a)[i]);
        d[i] = answer_query(t, plan.query, plan.level ? in<u32>(w, plan.level)[i] : 0);
    }
}

// --- surfaces: bytes by rows, and what happens outside ---

// The host address of a lane's access; 0: outside, where that is no fault.
u64 surface_address(Warp& w, const Op& op, const TexturePlan& plan, int i) {
    const Texture& t = texture_of(w, op, i, in<u64>(w, op.a)[i]);
    check_shape(w, op, i, t, plan);
    const TextureLevel& l = t.levels[0];
    const u32 size = u32(plan.bytes) * plan.elements;
    s64 at[3] = {};
    for (int d = 0; d < plan.dimensions; ++d) at[d] = in<s32>(w, plan.at[d])[i];
    if (plan.layered) at[2] = in<u32>(w, plan.layer)[i];
    const s64 limit[3] = {s64(l.width) * t.texel_bytes - s64(size) + 1, l.height, l.depth};
    bool outside = limit[0] <= 0;
    for (int d = 0; d < 3; ++d) outside |= at[d] < 0 || at[d] >= limit[d];
    if (outside) {
        if (plan.boundary == Boundary::zero) return 0;
        if (plan.boundary == Boundary::trap || limit[0] <= 0) outside_surface(w, op, i, t, at, size);
        for (int d = 0; d < 3; ++d) at[d] = clamped(at[d], limit[d]);
        at[0] -= at[0] % size;
    }
    if (at[0] % size)
        misused_texture(w, op, i, "the surface is accessed at a byte that its size does not divide");
    return l.address + static_cast<u64>(at[2]) * l.slice + static_cast<u64>(at[1]) * l.row +
           static_cast<u64>(at[0]);
}

// Rows follow on each other without gaps, so one may begin where a value wider than a texel is not aligned.
template <class M, class R>
void load(Warp& w, const Op& op) {
    const TexturePlan& plan = plan_of(w, op);
    u64 ad[kLanes];
    for (u32 m = w.exec; m; m &= m - 1) {
        const int i = __builtin_ctz(m);
        ad[i] = surface_address(w, op, plan, i);
    }
    M t[4][kLanes] = {};
    for (u32 m = w.exec; m; m &= m - 1) {
        const int i = __builtin_ctz(m);
        for (int n = 0; n < plan.elements; ++n)
            if (ad[i]) std::memcpy(&t[n][i], reinterpret_cast<const char*>(ad[i]) + n * sizeof(M), sizeof(M));
    }
    for (int n = 0; n < plan.elements; ++n) {
        R* d = out<R>(w, plan.value[n]);
        for (u32 m = w.exec; m; m &= m - 1) d[__builtin_ctz(m)] = t[n][__builtin_ctz(m)];
    }
}
template <class M, class R>
void store(Warp& w, const Op& op) {
    const TexturePlan& plan = plan_of(w, op);
    for (u32 m = w.exec; m; m &= m - 1) {
        const int i = __builtin_ctz(m);
        const u64 at = surface_address(w, op, plan, i);
        for (int n = 0; n < plan.elements && at; ++n) {
            const auto value = static_cast<M>(in<R>(w, plan.value[n])[i]);
            std::memcpy(reinterpret_cast<char*>(at) + n * sizeof value, &value, sizeof value);
        }
    }
}
template <class T>
void reduce(Warp& w, const Op& op) {
    const TexturePlan& plan = plan_of(w, op);
    for (u32 m = w.exec; m; m &= m - 1) {
        const int i = __builtin_ctz(m);
        const u64 at = surface_address(w, op, plan, i);
        if (!at) continue;
        if (at % sizeof(T))
            misused_texture(w, op, i, "the surface is changed by a value for which its rows are not aligned");
        const T value = in<T>(w, plan.value[0])[i];
        T* const place = reinterpret_cast<T*>(at);
        T old = __atomic_load_n(place, __ATOMIC_RELAXED), now;
        do {
            switch (plan.use) {
                case TextureUse::add:
                    now = static_cast<T>(old + value);
                    break;
                case TextureUse::min:
                    now = old < value ? old : value;
                    break;
                case TextureUse::max:
                    now = old < value ? value : old;
                    break;
                case TextureUse::bit_and:
                    now = old & value;
                    break;
                default:
                    now = old | value;
            }
        } while (!__atomic_compare_exchange_n(place, &old, now, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    }
}

const HandlerEntry entries[] = {
    {"tex", fetch},
    {"txq", query},
    {"suld.8", load<u8, u16>},
    {"suld.16", load<u16, u16>},
    {"suld.32", load<u32, u32>},
    {"suld.64", load<u64, u64>},
    {"sust.8", store<u8, u16>},
    {"sust.16", store<u16, u16>},
    {"sust.32", store<u32, u32>},
    {"sust.64", store<u64, u64>},
    {"sured.u32", reduce<u32>},
    {"sured.s32", reduce<s32>},
    {"sured.u64", reduce<u64>},
    {"sured.s64", reduce<s64>},
};

}  // namespace
HANDLER_TABLE(texture)
}  // namespace gpukernel::simgpu
