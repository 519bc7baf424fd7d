// Copies and reductions of boxes of tensors (PTX ISA 5.5, 9.7.9.27), done at once; and the fields of tensors'
// maps.
#include <stdio.h>

#include "simgpu/exec/handlers/bulk.h"
#include "simgpu/exec/handlers/tables.h"
#include "simgpu/tensor_map.h"

namespace gpukernel::simgpu {
namespace {

constexpr u32 kMostRow = 256 * 8;      // bytes of a row of a box
constexpr u32 kSharedAlignment = 128;  // of a box in shared memory

TensorMap read_map(Warp& w, const Op& op, int lane, u64 address, u32 rank) {
    TensorMap map;
    memcpy(&map, stretch(w, op, lane, address, sizeof map, AccessKind::read, TensorMap::ALIGNMENT),
           sizeof map);
    if (map.mark != TensorMap::MARK) not_a_tensor_map(w, op, lane, "its bytes are no tensor map's");
    if (const TensorMapTrouble trouble = trouble_with(map); trouble.why)
        not_a_tensor_map(w, op, lane, trouble.why, trouble.unsupported);
    if (map.rank() != rank) not_a_tensor_map(w, op, lane, "it has another number of dimensions");
    return map;
}

// A box in shared memory: its rows one behind the other.
struct Box {
    TensorMap map;
    u32 rank, row, rows, bytes;
    s64 first[kMostTensorRank];
    s64 from, to;  // the elements of a row that lie in the tensor
    Box(Warp& w, const Op& op, int lane) : rank(op.sub) {
        map = read_map(w, op, lane, in<u64>(w, op.b)[lane], rank);
        row = map.count(0) * map.element_bytes();
        u64 all = row;  // a box has at most 2048 times 256^4 bytes
        rows = 1;
        const u32* coordinates = w.frame->function->lists.data() + op.extra;
        for (u32 d = 0; d < rank; ++d) {
            first[d] = in<s32>(w, coordinates[d])[lane];
            if (d) all *= map.count(d), rows *= map.count(d);
        }
        if (all > kSharedMask) not_a_tensor_map(w, op, lane, "its box is larger than shared memory");
        bytes = static_cast<u32>(all);
        const s64 count = map.count(0), left = static_cast<s64>(map.dimensions[0]) - first[0];
        from = first[0] < 0 ? (-first[0] < count ? -first[0] : count) : 0;
        to = left < 0 ? 0 : left < count ? left : count;
        if (to < from) to = from;
    }
    // The address of element `from` of a row; false: the row lies outside.
    bool place(u32 n, u64& address) const {
        address = map.address + static_cast<u64>(first[0] + from) * map.element_bytes();
        if (from >= to) return false;
        for (u32 d = 1; d < rank; ++d) {
            const u32 count = map.count(d);
            const s64 at = first[d] + static_cast<s64>(n % count) * map.steps[d];
            n /= count;
            if (at < 0 || at >= static_cast<s64>(map.dimensions[d])) return false;
            address += static_cast<u64>(at) * map.strides[d - 1];
        }
        return true;
    }
    u32 before() const { return static_cast<u32>(from) * map.element_bytes(); }
    u32 inside() const { return static_cast<u32>(to - from) * map.element_bytes(); }
    // Where chunk `n` of the row's sixteen bytes lies, from the box's first byte on.
    template <class F>
    void chunks(u64 shared, u32 n, F f) const {
        const u32 mask = map.swizzle ? (1u << map.swizzle) - 1 : 0;
        for (u32 at = 0; at < row; at += 16) {
            const u64 plain = shared + static_cast<u64>(n) * row + at;
            f(at, (plain ^ (plain >> 7 & mask) << 4) - shared);
        }
    }
    void fill(char* to_row) const {
        if (!map.nan_outside) {
            memset(to_row, 0, row);
            return;
        }
        const u32 size = map.element_bytes();
        for (u32 at = 0; at < row; ++at) to_row[at] = static_cast<char>(at % size == size - 1 ? 0x7f : 0xff);
    }
};

// The rows that a lane's box has in the tensor, with what lies outside filled.
void fetch_row(Warp& w, const Op& op, int lane, const Box& box, u32 n, char* to) {
    u64 address;
    const bool there = box.place(n, address);
    if (!there || box.inside() < box.row) box.fill(to);
    if (there)
        memcpy(to + box.before(), stretch(w, op, lane, address, box.inside(), AccessKind::read, 1),
               box.inside());
}

void load_into(Warp& w, const Op& op, int lane, const Box& box, u64 shared) {
    char* const to = stretch(w, op, lane, shared, box.bytes, AccessKind::write, kSharedAlignment);
    alignas(64) char row[kMostRow];
    for (u32 n = 0; n < box.rows; ++n) {
        fetch_row(w, op, lane, box, n, row);
        box.chunks(shared & kSharedMask, n, [&](u32 at, u64 place) { memcpy(to + place, row + at, 16); });
    }
}
// Op::dst gets the bytes that the barrier hears of.
void load(Warp& w, const Op& op) {
    const u64* to = in<u64>(w, op.a);
    u32* bytes = out<u32>(w, op.dst);
    for (u32 m = w.exec; m; m &= m - 1) {
        const int i = __builtin_ctz(m);
        const Box box(w, op, i);
        load_into(w, op, i, box, to[i]);
        bytes[i] = box.bytes;
    }
}
void load_to_many(Warp& w, const Op& op) {
    const u64 *to = in<u64>(w, op.a), *barrier = in<u64>(w, op.c);
    const u16* ranks = in<u16>(w, op.aux);
    w.touched = true;
    for (u32 m = w.exec; m; m &= m - 1) {
        const int i = __builtin_ctz(m);
        const Box box(w, op, i);
        for (u32 r = ranks[i]; r; r &= r - 1) {
            const u64 name = static_cast<u64>(__builtin_ctz(r)) + 1;
            load_into(w, op, i, box, named_block(to[i], name));
            u64* object = reinterpret_cast<u64*>(
                stretch(w, op, i, named_block(barrier[i], name), 8, AccessKind::atomic, 8));
            *object = without(Phase{*object}, box.bytes);
        }
    }
}

void store_row(Warp& w, const Op& op, int lane, const Box& box, const char* from, u64 shared, u32 n,
               char* row) {
    box.chunks(shared & kSharedMask, n, [&](u32 at, u64 place) { memcpy(row + at, from + place, 16); });
}
void store(Warp& w, const Op& op) {
    const u64* shared = in<u64>(w, op.a);
    alignas(64) char row[kMostRow];
    for (u32 m = w.exec; m; m &= m - 1) {
        const int i = __builtin_ctz(m);
        const Box box(w, op, i);
        const char* from = stretch(w, op, i, shared[i], box.bytes, AccessKind::read, kSharedAlignment);
        for (u32 n = 0; n < box.rows; ++n) {
            u64 address;
            if (!box.place(n, address)) continue;
            store_row(w, op, i, box, from, shared[i], n, row);
            memcpy(stretch(w, op, i, address, box.inside(), AccessKind::write, 1), row + box.before(),
                   box.inside());
        }
    }
}

// Element by element, 32 at a time as if each lane had one, with the handler of the atomic operation.
enum Reduction : u8 { kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };
Handler reduction(u8 what, TensorElement element) {
    static const char* const names[] = {"add", "min", "max", "inc", "dec", "and", "or", "xor"};
    static const char* const types[] = {nullptr, nullptr, "u32",   "s32",  "u64",   "s64",  "f16",
                                        "f32",   nullptr, nullptr, "bf16", nullptr, nullptr};
    const char* type = types[static_cast<int>(element)];
    // Atomic additions of integers are of bits.
    if (what == kAdd && !is_float(element))
        type = element == TensorElement::s64 || size_of(element) < 4 ? nullptr
               : size_of(element) == 4                               ? "b32"
                                                                     : "b64";
    if ((what == kInc || what == kDec) && element != TensorElement::u32) return nullptr;
    if (!type || ((what == kMin || what == kMax) && element == TensorElement::f32)) return nullptr;
    if (what >= kAnd) {
        if (is_float(element)) return nullptr;
        type = size_of(element) == 4 ? "b32" : "b64";
    }
    char key[24];
    snprintf(key, sizeof key, "atom.%s.%s", names[what], type);
    return find_handler(key);
}
void reduce(Warp& w, const Op& op) {
    const u64* shared = in<u64>(w, op.a);
    alignas(64) char row[kMostRow];
    Op each = op;
    each.a = op.dst, each.b = op.c, each.dst = 0, each.imm = 0, each.sub = each.sub2 = 0;
    each.access = AccessKind::atomic;
    const u32 exec = w.exec;
    u64* places = out<u64>(w, op.dst);
    char* values = reinterpret_cast<char*>(out<u64>(w, op.c));
    for (u32 m = exec; m; m &= m - 1) {
        const int i = __builtin_ctz(m);
        const Box box(w, op, i);
        each.fn = reduction(op.sub2, static_cast<TensorElement>(box.map.element));
        if (!each.fn) not_a_tensor_map(w, op, i, "its elements have no such reduction");
        const u32 size = box.map.element_bytes();
        const char* from = stretch(w, op, i, shared[i], box.bytes, AccessKind::read, kSharedAlignment);
        for (u32 n = 0; n < box.rows; ++n) {
            u64 address;
            if (!box.place(n, address)) continue;
            store_row(w, op, i, box, from, shared[i], n, row);
            for (u32 at = 0; at < box.inside(); at += kLanes * size) {
                const u32 left = (box.inside() - at) / size, count = left < kLanes ? left : kLanes;
                for (u32 l = 0; l < count; ++l) places[l] = address + at + l * size;
                memcpy(values, row + box.before() + at, count * size);
                w.exec = count == kLanes ? kFull : (1u << count) - 1;
                each.fn(w, each);
            }
            w.exec = exec;
        }
    }
}

// tensormap.replace: Op::sub names the field, Op::imm its index.
void replace(Warp& w, const Op& op) {
    const u64* value = in<u64>(w, op.b);
    for (u32 m = w.exec; m; m &= m - 1) {
        const int i = __builtin_ctz(m);
        TensorMap& map = *reinterpret_cast<TensorMap*>(stretch(
            w, op, i, in<u64>(w, op.a)[i], sizeof(TensorMap), AccessKind::write, TensorMap::ALIGNMENT));
        const u64 v = value[i];
        map.mark = TensorMap::MARK;
        switch (op.sub) {
            case 0:
                map.address = v;
                break;
            case 1:
                map.rank_less_one = v > 255 ? 255 : static_cast<u8>(v);
                break;
            case 2:
                map.box[op.imm] = v > 0xffff ? 0xffff : static_cast<u16>(v);
                break;
            case 3:
                map.dimensions[op.imm] = v;
                break;
            case 4:
                map.strides[op.imm] = v;
                break;
            case 5:
                map.steps[op.imm] = v > 255 ? 255 : static_cast<u8>(v);
                break;
            case 6:
                map.element = v > 255 ? 255 : static_cast<u8>(v);
                break;
            case 7:
                map.interleave = v > 255 ? 255 : static_cast<u8>(v);
                break;
            case 8:
                map.swizzle = v > 255 ? 255 : static_cast<u8>(v);
                break;
            default:
                map.nan_outside = v > 255 ? 255 : static_cast<u8>(v);
                break;
        }
    }
}
// tensormap.cp_fenceproxy: the whole warp copies one map.
void copy_map(Warp& w, const Op& op) {
    const u32 lane = __builtin_ctz(w.exec);
    const u64 *to = in<u64>(w, op.a), *from = in<u64>(w, op.b);
    memmove(stretch(w, op, lane, to[lane], sizeof(TensorMap), AccessKind::write, kSharedAlignment),
            stretch(w, op, lane, from[lane], sizeof(TensorMap), AccessKind::read, kSharedAlignment),
            sizeof(TensorMap));
}

const HandlerEntry entries[] = {
    {"tensor.load", load},     {"tensor.load.multicast", load_to_many}, {"tensor.store", store},
    {"tensor.reduce", reduce}, {"tensormap.replace", replace},          {"tensormap.copy", copy_map},
};

}  // namespace
HANDLER_TABLE(tensor)
}  // namespace gpukernel::simgpu
