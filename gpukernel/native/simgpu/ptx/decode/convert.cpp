// cvt, and mov with its packing and unpacking of registers.
#include "decoder.h"

namespace gpukernel::simgpu::ptx {

void Decoder::convert() {
    auto found = types();
    if (found.size() != 2) lacking();
    Type d = found[0], s = found[1];
    auto plain = [](Type t) {  // b32 converts as u32
        switch (t) {
            case Type::b8:
                return Type::u8;
            case Type::b16:
                return Type::u16;
            case Type::b32:
                return Type::u32;
            case Type::b64:
                return Type::u64;
            default:
                return t;
        }
    };
    d = plain(d), s = plain(s);
    std::string round;
    for (const char* r : {"rni", "rzi", "rmi", "rpi"})
        if (has(r)) round = r;
    std::string key = "cvt.";
    if (is_float(s) && !is_float(d) && round.empty()) round = "rzi";
    if (!round.empty()) key += round + ".";
    if (has("sat") && !is_float(d) && !is_float(s)) key += "sat.";
    key += std::string(name_of(d)) + "." + std::string(name_of(s));
    if (is_float(d) || is_float(s)) set_mode(wanted_mode());
    Op op = fresh();
    op.a = source(operand(1), s);
    if (here_->operands.size() > 2) op.b = source(operand(2), s);
    uint32_t value = std::max(2u, size_of(d));
    uint32_t room = operand(0).kind == Operand::sink ? value : width(operand(0)),
             real = destination(operand(0), room);
    op.dst = room == value ? real : temp(value);
    emit(key, op);
    if (has("sat") && is_float(d)) {
        Op clip = fresh();
        clip.dst = clip.a = op.dst;
        emit("sat." + std::string(name_of(d)), clip);
    }
    if (room != value) {
        Op grow = fresh();
        grow.dst = real, grow.a = op.dst;
        emit((is_signed(d) && room > value ? "resize.s" : "resize.") + bits(room) + "." + bits(value), grow);
    }
}

void Decoder::move() {
    Type t = type();
    const Operand &d = operand(0), &s = operand(1);
    uint32_t bytes = t == Type::pred ? 0 : std::max(2u, size_of(t));
    auto put = [&](const std::string& key, uint32_t to, uint32_t a, uint32_t b = 0) {
        Op op = fresh();
        op.dst = to, op.a = a, op.b = b;
        emit(key, op);
    };
    if (s.kind == Operand::vector) {  // pack, low element first
        std::vector<uint32_t> parts;
        if (s.parts.size() != 2 && s.parts.size() != 4) wrong("a vector has two or four elements");
        uint32_t part = bytes / static_cast<uint32_t>(s.parts.size());
        Type pt = part == 2 ? Type::b16 : Type::b32;
        if (part < 2) lacking("packing bytes");
        for (const Operand& o : s.parts) parts.push_back(source(o, pt));
        while (parts.size() > 1) {
            std::vector<uint32_t> next;
            for (size_t i = 0; i + 1 < parts.size(); i += 2) {
                uint32_t to = parts.size() == 2 ? destination(d, bytes) : temp(part * 2);
                put("pack." + bits(part * 2) + "." + bits(part), to, parts[i], parts[i + 1]);
                next.push_back(to);
            }
            parts = next;
            part *= 2;
        }
        return;
    }
    if (d.kind == Operand::vector) {
        if (d.parts.size() != 2 && d.parts.size() != 4) wrong("a vector has two or four elements");
        uint32_t part = bytes / static_cast<uint32_t>(d.parts.size());
        if (part < 2) lacking("unpacking bytes");
        std::vector<uint32_t> values = {source(s, t)};
        uint32_t size = bytes;
        while (size > part) {
            std::vector<uint32_t> next;
            for (uint32_t v : values)
                for (bool high : {false, true}) {
                    uint32_t to = temp(size / 2);
                    put((high ? "high." : "resize.") + bits(size / 2) + "." + bits(size), to, v);
                    next.push_back(to);
                }
            values = next;
            size /= 2;
        }
        for (size_t i = 0; i < d.parts.size(); ++i)
            if (d.parts[i].kind != Operand::sink)
                put("mov.b" + bits(part), destination(d.parts[i], part), values[i]);
        return;
    }
    if (s.kind == Operand::special && d.kind == Operand::variable) {
        int which;
        if (special(s.name, which)) {
            Op op = fresh();
            op.dst = destination(d, bytes);
            op.imm = which;
            return emit("special." + bits(bytes), op);
        }
    }
    Op op = fresh();
    op.a = source(s, t);
    if (s.negated) op.sub |= 1;
    op.dst = destination(d, bytes);
    emit(bytes ? "mov.b" + bits(bytes) : "mov.pred", op);
}

}  // namespace gpukernel::simgpu::ptx
