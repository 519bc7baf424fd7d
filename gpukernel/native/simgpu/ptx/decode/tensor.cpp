// Copies and reductions by tensors' maps (PTX ISA 9.7.9.27), and the maps' fields (9.7.9.28).
#include "simgpu/ptx/decode/decoder.h"
#include "simgpu/tensor_map.h"

namespace gpukernel::simgpu::ptx {

// [map, {coordinates}]: the map's generic address, and the coordinates' slots in Function::lists.
uint32_t Decoder::tensor_place(const Operand& place, Op& op) {
    if (place.kind != Operand::address || place.parts.size() != 2 || place.parts[1].kind != Operand::vector)
        wrong("expected a tensor's map and a vector of coordinates in brackets");
    for (const std::string& part : here_->parts)
        if (part.size() == 2 && part[1] == 'd' && part[0] >= '1' && part[0] <= '5')
            op.sub = static_cast<uint8_t>(part[0] - '0');
    const std::vector<Operand>& list = place.parts[1].parts;
    if (list.size() != op.sub) wrong("so many coordinates are needed as the tensor has dimensions");
    std::vector<uint32_t> slots;
    for (const Operand& o : list) {
        if (o.kind == Operand::variable && width(o) != 4) wrong("a coordinate has 32 bits");
        slots.push_back(source(o, Type::s32));
    }
    op.extra = static_cast<uint32_t>(out_.lists.size());
    out_.lists.insert(out_.lists.end(), slots.begin(), slots.end());
    return address_in(place, false);
}

void Decoder::copy_tensor() {
    for (const std::string& part : here_->parts)
        if (part.starts_with("im2col") || part.starts_with("cta_group") || part == "tile::gather4" ||
            part == "tile::scatter4")
            lacking("a box of a tensor is copied as a tile");
    const bool loads = has("mbarrier::complete_tx::bytes"), many = has("multicast::cluster"),
               hint = has("L2::cache_hint");
    const size_t wanted = (has("prefetch") ? 1 : loads ? 3 : 2) + (many ? 1 : 0) + (hint ? 1 : 0);
    if (here_->operands.size() != wanted) wrong("another number of operands is needed");
    if (hint) cache_policy();
    Op op = fresh();
    if (has("prefetch")) {  // a hint, of which nothing follows
        tensor_place(operand(0), op);
        return;
    }
    op.b = tensor_place(operand(loads ? 1 : 0), op);
    op.a = address_in(operand(loads ? 0 : 1), true);
    if (has("reduce")) {
        const char* const names[] = {"add", "min", "max", "inc", "dec", "and", "or", "xor"};
        while (op.sub2 < std::size(names) && !has(names[op.sub2])) ++op.sub2;
        op.dst = temp(8), op.c = temp(8);
        op.pattern = kClobbers;
        return emit("tensor.reduce", op);
    }
    if (!loads) return emit("tensor.store", op);
    if (many) {
        op.c = address_in(operand(2), true);
        op.aux = source(operand(3), Type::u16);
        return emit("tensor.load.multicast", op);
    }
    op.dst = temp(4);
    emit("tensor.load", op);
    barrier_object("complete_tx", nullptr, operand(2), op.dst);
}

void Decoder::tensor_map() {
    if (has("cp_fenceproxy")) {
        if (operand(2).kind != Operand::integer || operand(2).value != sizeof(TensorMap))
            wrong("a tensor's map has 128 bytes");
        Op op = fresh();
        op.a = address_in(operand(0), false), op.b = address_in(operand(1), true);
        op.control = Control::warp_sync;
        op.aux = constant(4, kFull);
        return emit("tensormap.copy", op);
    }
    static const char* const fields[] = {"global_address", "rank",           "box_dim",  "global_dim",
                                         "global_stride",  "element_stride", "elemtype", "interleave_layout",
                                         "swizzle_mode",   "fill_mode"};
    Op op = fresh();
    while (op.sub < std::size(fields) && !has(fields[op.sub])) ++op.sub;
    if (op.sub == std::size(fields)) lacking();
    const bool indexed = op.sub >= 2 && op.sub <= 5, wide = op.sub == 0 || op.sub == 4;
    if (wide != has("b64")) wrong("its value has " + std::string(wide ? "64" : "32") + " bits");
    if (here_->operands.size() != (indexed ? 3u : 2u)) wrong("another number of operands is needed");
    if (indexed) {
        const Operand& index = operand(1);
        const int64_t most = kMostTensorRank - (op.sub == 4 ? 1 : 0);
        if (index.kind != Operand::integer || index.value < 0 || index.value >= most)
            wrong("no such dimension");
        op.imm = index.value;
    }
    const Operand& value = operand(indexed ? 2 : 1);
    if (op.sub >= 6 && value.kind != Operand::integer) wrong("its value is a constant");
    op.a = address_in(operand(0), has("shared::cta"));
    op.b = wide ? source(value, Type::b64) : fit(source(value, Type::b32), 4, 8, false);
    emit("tensormap.replace", op);
}

}  // namespace gpukernel::simgpu::ptx
