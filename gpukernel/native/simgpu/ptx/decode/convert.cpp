// cvt, and mov with its packing and unpacking of registers.
#include "simgpu/ptx/decode/decoder.h"

namespace gpukernel::simgpu::ptx {

static bool is_narrow(Type t) {
    return t == Type::f16 || t == Type::bf16 || t == Type::f16x2 || t == Type::bf16x2 || t == Type::tf32 ||
           t == Type::e4m3x2 || t == Type::e5m2x2;
}

void Decoder::convert() {
    if (has("pack")) return pack();
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
    bool narrow = is_narrow(d);
    const bool holds_all = (is_signed(s) == is_signed(d) && size_of(d) >= size_of(s)) ||
                           (is_signed(d) && size_of(d) > size_of(s));
    if (has("sat") && !is_float(d) && !is_float(s) && !narrow && !is_narrow(s) && holds_all)
        wrong("nothing is out of range that .sat could keep in it");
    std::string key = "cvt.";
    if (is_float(s) && !is_float(d) && !narrow && round.empty()) round = "rzi";
    if (narrow && round.empty())  // what has fewer bits than a float is rounded by its handler
        for (const char* r : {"rz", "rm", "rp", "rna"})
            if (has(r)) round = r;
    if (!round.empty()) key += round + ".";
    if (has("sat") && !is_float(d) && !is_float(s)) key += "sat.";
    key += std::string(name_of(d)) + "." + std::string(name_of(s));
    if (is_float(d) || is_float(s)) set_mode(narrow ? 0 : wanted_mode());
    Op op = fresh();
    op.a = source(operand(1), s);
    // f16 holds no number that is flushed, but one that such a number would be rounded to.
    if (has("ftz") && (d == Type::bf16 || (d == Type::f16 && (round == "rm" || round == "rp")))) {
        const uint32_t flushed = temp(4);
        prepare("flush.f32", flushed, op.a);
        op.a = flushed;
    }
    if (here_->operands.size() > 2) op.b = source(operand(2), s);
    if (has("relu") && size_of(d) == 2 && d != Type::f16 &&
        d != Type::bf16) {  // before it is too short to tell
        op.a = rectified(op.a, s);
        if (here_->operands.size() > 2) op.b = rectified(op.b, s);
    }
    uint32_t value = std::max(2u, size_of(d));
    uint32_t room = operand(0).kind == Operand::sink ? value : width(operand(0)),
             real = destination(operand(0), room);
    op.dst = room == value ? real : temp(value);
    emit(key, op);
    if (is_float(d) || d == Type::tf32) finish(op.dst, d);
    if (room != value) {
        Op grow = fresh();
        grow.dst = real, grow.a = op.dst;
        emit((is_signed(d) && room > value ? "resize.s" : "resize.") + bits(room) + "." + bits(value), grow);
    }
}

uint32_t Decoder::rectified(uint32_t slot, Type type) {
    uint32_t t = temp(size_of(type));
    prepare("relu." + std::string(name_of(type)), t, slot);
    return t;
}

// cvt.pack.sat.CONVERTED.s32[.b32]: two numbers into the low bits, c moved up behind them.
void Decoder::pack() {
    std::string_view to;  // the first of the types, of which some are no type of a register
    for (const std::string& part : here_->parts)
        if (to.empty() && part.size() > 1 && (part[0] == 's' || part[0] == 'u') && part[1] >= '0' &&
            part[1] <= '9')
            to = part;
    Op op = fresh();
    op.imm = std::stoi(std::string(to.substr(1)));
    op.sub = to[0] == 's';
    op.a = source(operand(1), Type::s32);
    op.b = source(operand(2), Type::s32);
    op.c = here_->operands.size() > 3 ? source(operand(3), Type::b32) : constant(4, 0);
    op.dst = destination(operand(0), 4);
    emit("cvt.pack", op);
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
    if ((has("v2") || has("v4")) && d.kind == Operand::vector && s.kind == Operand::vector) {
        if (d.parts.size() != s.parts.size()) wrong("vectors of different lengths");
        std::vector<uint32_t> values;  // all of them before any is written: one may be among the others
        for (const Operand& part : s.parts) {
            values.push_back(temp(bytes));
            prepare("mov.b" + bits(bytes), values.back(), source(part, t, bytes));
        }
        for (size_t n = 0; n < values.size(); ++n)
            if (d.parts[n].kind != Operand::sink)
                put("mov.b" + bits(bytes), destination(d.parts[n], bytes), values[n]);
        return;
    }
    if (s.kind == Operand::vector) {  // pack, low element first
        std::vector<uint32_t> parts;
        if (s.parts.size() != 2 && s.parts.size() != 4) wrong("a vector has two or four elements");
        uint32_t part = bytes / static_cast<uint32_t>(s.parts.size());
        if (!part) wrong("too many elements");
        Type pt = part == 1 ? Type::b8 : part == 2 ? Type::b16 : part == 4 ? Type::b32 : Type::b64;
        for (const Operand& o : s.parts) parts.push_back(source(o, pt));
        while (parts.size() > 1) {
            std::vector<uint32_t> next;
            for (size_t i = 0; i + 1 < parts.size(); i += 2) {
                uint32_t to = parts.size() == 2 ? destination(d, bytes) : temp(std::max(2u, part * 2));
                put("pack." + bits(part * 2) + "." + bits(part), to, parts[i], parts[i + 1]);
                next.push_back(to);
            }
            parts = next;
            part *= 2;
        }
        return;
    }
    if (has("v4") && d.kind == Operand::vector && s.kind == Operand::special) {  // %tid and its like, whole
        if (d.parts.size() != 4) wrong("a vector has two or four elements");
        for (size_t i = 0; i < 4; ++i) {
            Op op = fresh();
            int which = kZero;
            if (i < 3 && !special(s.name + "." + "xyz"[i], which)) lacking("special register " + s.name);
            if (d.parts[i].kind == Operand::sink) continue;
            op.dst = destination(d.parts[i], bytes);
            op.imm = which;
            emit("special." + bits(bytes), op);
        }
        return;
    }
    if (d.kind == Operand::vector) {
        if (d.parts.size() != 2 && d.parts.size() != 4) wrong("a vector has two or four elements");
        uint32_t part = bytes / static_cast<uint32_t>(d.parts.size());
        if (!part) wrong("too many elements");
        std::vector<uint32_t> values = {source(s, t)};
        uint32_t size = bytes;
        while (size > part) {
            std::vector<uint32_t> next;
            for (uint32_t v : values)
                for (bool high : {false, true}) {
                    uint32_t to = temp(std::max(2u, size / 2));
                    put((high ? "high." : "resize.") + bits(size / 2) + "." + bits(size), to, v);
                    next.push_back(to);
                }
            values = next;
            size /= 2;
        }
        for (size_t i = 0; i < d.parts.size(); ++i)
            if (d.parts[i].kind != Operand::sink)
                put("mov.b" + bits(std::max(2u, part)), destination(d.parts[i], part), values[i]);
        return;
    }
    if (s.kind == Operand::special && d.kind == Operand::variable) {
        int which;
        if (special(s.name, which) && bytes) {
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
