// A tensor's map (driver API "Tensor Map Object Management", PTX ISA 5.5): 128 bytes that the driver writes
// and kernels pass on.  NVIDIA's own encoding is nobody's business; this is that of simulated devices.  What
// a kernel writes field by field (`tensormap.replace`) over zeros is a map, too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpukernel::simgpu {

// In the order of `tensormap.replace`, not in that of CUtensorMapDataType.
enum class TensorElement : uint8_t {
    u8,
    u16,
    u32,
    s32,
    u64,
    s64,
    f16,
    f32,
    f32_ftz,
    f64,
    bf16,
    tf32,
    tf32_ftz
};
constexpr uint32_t size_of(TensorElement e) {
    constexpr uint8_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4};
    return bytes[static_cast<int>(e)];
}
constexpr bool is_float(TensorElement e) { return e >= TensorElement::f16; }
constexpr uint8_t kTensorElements = 13, kMostTensorRank = 5;

struct TensorMap {
    static constexpr uint64_t MARK = 0x70614d726f736e54;  // "TnsorMap"
    static constexpr size_t ALIGNMENT = 64;
    uint64_t mark;
    uint64_t address;
    uint64_t dimensions[kMostTensorRank];   // in elements, the innermost first
    uint64_t strides[kMostTensorRank - 1];  // in bytes, from the second dimension on
    uint16_t box[kMostTensorRank];          // in elements of the tensor, of which every step-th is copied
    uint8_t steps[kMostTensorRank];
    uint8_t element;
    uint8_t rank_less_one;
    uint8_t interleave;  // 0 none, 1 of 16, 2 of 32 bytes
    uint8_t swizzle;     // 0 none, 1 of 32, 2 of 64, 3 of 128 bytes
    uint8_t nan_outside;
    uint8_t unused[19];
    uint32_t rank() const { return rank_less_one + 1u; }
    uint32_t element_bytes() const { return size_of(static_cast<TensorElement>(element)); }
    uint32_t span() const { return swizzle ? 16u << swizzle : 0; }  // bytes of a row of the pattern
    // The first dimension has no step where nothing is interleaved.
    uint32_t count(uint32_t d) const { return d ? (box[d] + steps[d] - 1u) / steps[d] : box[0]; }
};
static_assert(sizeof(TensorMap) == 128);

// What is wrong with a map, for people; nullptr: nothing.
struct TensorMapTrouble {
    const char* why = nullptr;
    bool unsupported = false;  // a GPU would take it
};
inline TensorMapTrouble trouble_with(const TensorMap& map) {
    constexpr uint64_t kMostDimension = 1ull << 32, kStrideEnd = 1ull << 40;
    const uint32_t rank = map.rank();
    if (map.element >= kTensorElements) return {"its type of elements is none"};
    if (rank > kMostTensorRank) return {"it has more than five dimensions"};
    if (map.interleave > 2 || (map.interleave && rank < 3)) return {"its interleaving does not fit"};
    if (map.swizzle > 3 || (map.interleave == 2 && map.swizzle != 1)) return {"its swizzling does not fit"};
    if (map.nan_outside > 1 || (map.nan_outside && !is_float(static_cast<TensorElement>(map.element))))
        return {"it is to be filled with what is no number, and its elements are integers"};
    const uint32_t align = map.interleave == 2 ? 32 : 16;
    if (map.address % align) return {"its address is not aligned"};
    for (uint32_t d = 0; d < rank; ++d) {
        if (!map.dimensions[d] || map.dimensions[d] > kMostDimension)
            return {"a dimension is 0 or too large"};
        if (!map.box[d] || map.box[d] > 256) return {"its box is empty or longer than 256 elements"};
        if (!map.steps[d] || map.steps[d] > 8) return {"a step is 0 or larger than 8"};
        if (d && (map.strides[d - 1] % align || map.strides[d - 1] >= kStrideEnd))
            return {"a stride is not aligned or too large"};
    }
    const uint32_t inner = map.box[0] * map.element_bytes();
    if (!map.interleave && inner % 16) return {"a row of its box is no multiple of 16 bytes"};
    if (!map.interleave && map.swizzle && inner > map.span())
        return {"a row of its box is longer than the swizzle's"};
    if (map.interleave) return {"interleaved tensors are not supported by the simulated GPU", true};
    if (map.swizzle && inner < map.span())
        return {"rows shorter than the swizzle's are not supported by the simulated GPU", true};
    const auto e = static_cast<TensorElement>(map.element);
    if (e == TensorElement::f32_ftz || e == TensorElement::tf32 || e == TensorElement::tf32_ftz)
        return {"elements that are rounded on their way are not supported by the simulated GPU", true};
    return {};
}

}  // namespace gpukernel::simgpu
