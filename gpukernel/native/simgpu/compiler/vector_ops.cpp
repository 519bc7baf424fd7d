// The instructions of x86-64 (AVX-512 F, BW, DQ, VL) behind the names of operations.
#include "simgpu/compiler/vector_ops.h"

#include <unordered_map>

#include "simgpu/exec/machine.h"

namespace gpukernel::simgpu::compiler {
namespace {

enum : uint8_t { none, p66, pF3, pF2 };
enum : uint8_t { m0F = 1, m38, m3A };

using Table = std::unordered_map<std::string, VectorOp>;

void floats(Table& t) {
    const auto both = [&](const std::string& name, VectorOp::Form form, uint8_t opcode, uint8_t map = m0F,
                          uint8_t detail = 0) {
        t.emplace(name + ".f32", VectorOp{form, 4, {map == m0F ? none : p66, map, 0, opcode}, detail});
        t.emplace(name + ".f64", VectorOp{form, 8, {p66, map, 1, opcode}, detail});
    };
    both("add", VectorOp::two, 0x58);
    both("sub", VectorOp::two, 0x5c);
    both("mul", VectorOp::two, 0x59);
    both("div", VectorOp::two, 0x5e);
    both("sqrt", VectorOp::one, 0x51);
    both("fma", VectorOp::fused, 0xb8, m38);
    both("mad", VectorOp::fused, 0xb8, m38);
    both("rcp", VectorOp::reciprocal, 0x5e);
    both("min", VectorOp::extreme, 0, m0F, 1);
    both("max", VectorOp::extreme, 0, m0F, 14);
    t.emplace("rsqrt.f32", VectorOp{VectorOp::root, 4});
    // How a sign bit is changed: taken away (0), turned around (1).
    both("abs", VectorOp::sign, 0xdb, m0F, 0);
    both("neg", VectorOp::sign, 0xef, m0F, 1);
    const std::pair<const char*, uint8_t> comparisons[] = {
        {"eq", 0},  {"ne", 12}, {"lt", 1},   {"le", 2},  {"gt", 14}, {"ge", 13}, {"equ", 8},
        {"neu", 4}, {"ltu", 9}, {"leu", 10}, {"gtu", 6}, {"geu", 5}, {"num", 7}, {"nan", 3}};
    for (const auto& [name, predicate] : comparisons)
        both(std::string("setp.") + name, VectorOp::compare, 0xc2, m0F, predicate);
    const std::pair<const char*, uint8_t> roundings[] = {{"rni", 0}, {"rmi", 1}, {"rpi", 2}, {"rzi", 3}};
    for (const auto& [name, how] : roundings) {
        const std::string round = std::string("cvt.") + name;
        t.emplace(round + ".f32.f32",
                  VectorOp{VectorOp::one, 4, {p66, m3A, 0, 0x08}, static_cast<uint8_t>(8 | how)});
        t.emplace(round + ".f64.f64",
                  VectorOp{VectorOp::one, 8, {p66, m3A, 1, 0x09}, static_cast<uint8_t>(8 | how)});
        t.emplace(round + ".s32.f32", VectorOp{VectorOp::clamp, 4, {pF3, m0F, 0, 0x5b}, how});
        t.emplace(round + ".u32.f32", VectorOp{VectorOp::clamp, 4, {none, m0F, 0, 0x78}, how});
    }
    t.emplace("cvt.f32.f32", VectorOp{VectorOp::move, 4});
    t.emplace("cvt.f64.f64", VectorOp{VectorOp::move, 8});
    t.emplace("cvt.f32.s32", VectorOp{VectorOp::one, 4, {none, m0F, 0, 0x5b}});
    t.emplace("cvt.f32.u32", VectorOp{VectorOp::one, 4, {pF2, m0F, 0, 0x7a}});
    t.emplace("cvt.f64.s64", VectorOp{VectorOp::one, 8, {pF3, m0F, 1, 0xe6}});
    t.emplace("cvt.f64.u64", VectorOp{VectorOp::one, 8, {pF3, m0F, 1, 0x7a}});
    t.emplace("cvt.f64.f32", VectorOp{VectorOp::widened, 4, {none, m0F, 0, 0x5a}});
    t.emplace("cvt.f64.s32", VectorOp{VectorOp::widened, 4, {pF3, m0F, 0, 0xe6}});
    t.emplace("cvt.f64.u32", VectorOp{VectorOp::widened, 4, {pF3, m0F, 0, 0x7a}});
    t.emplace("cvt.f32.f64", VectorOp{VectorOp::narrowed, 8, {p66, m0F, 1, 0x5a}});
}

void integers(Table& t) {
    const auto both = [&](const std::string& name, const char* type, VectorOp::Form form, uint8_t map,
                          uint8_t narrow, uint8_t wide, uint8_t detail = 0) {
        t.emplace(name + "." + type + "32", VectorOp{form, 4, {p66, map, 0, narrow}, detail});
        t.emplace(name + "." + type + "64", VectorOp{form, 8, {p66, map, 1, wide}, detail});
    };
    both("add", "b", VectorOp::two, m0F, 0xfe, 0xd4);
    both("sub", "b", VectorOp::two, m0F, 0xfa, 0xfb);
    both("mul.lo", "b", VectorOp::two, m38, 0x40, 0x40);
    both("mad.lo", "b", VectorOp::fused, m38, 0x40, 0x40);
    both("and", "b", VectorOp::two, m0F, 0xdb, 0xdb);
    both("or", "b", VectorOp::two, m0F, 0xeb, 0xeb);
    both("xor", "b", VectorOp::two, m0F, 0xef, 0xef);
    both("not", "b", VectorOp::sign, m0F, 0xef, 0xef, 2);
    both("mov", "b", VectorOp::move, 0, 0, 0);
    both("selp", "b", VectorOp::select, m38, 0x64, 0x64);
    // Into the window of a space, and out of any.
    t.emplace("cvta.shared", VectorOp{VectorOp::sign, 8, {p66, m0F, 1, 0xeb}, 3});
    t.emplace("cvta.local", VectorOp{VectorOp::sign, 8, {p66, m0F, 1, 0xeb}, 4});
    t.emplace("cvta.param", VectorOp{VectorOp::sign, 8, {p66, m0F, 1, 0xeb}, 5});
    t.emplace("cvta.to", VectorOp{VectorOp::sign, 8, {p66, m0F, 1, 0xdb}, 6});
    t.emplace("shl.b64", VectorOp{VectorOp::shift, 8, {p66, m38, 1, 0x47}});
    t.emplace("shr.b64", VectorOp{VectorOp::shift, 8, {p66, m38, 1, 0x45}});
    t.emplace("shr.u64", VectorOp{VectorOp::shift, 8, {p66, m38, 1, 0x45}});
    t.emplace("shr.s64", VectorOp{VectorOp::shift, 8, {p66, m38, 1, 0x46}});
    t.emplace("shl.b32", VectorOp{VectorOp::two, 4, {p66, m38, 0, 0x47}});
    t.emplace("shr.b32", VectorOp{VectorOp::two, 4, {p66, m38, 0, 0x45}});
    t.emplace("shr.u32", VectorOp{VectorOp::two, 4, {p66, m38, 0, 0x45}});
    t.emplace("shr.s32", VectorOp{VectorOp::two, 4, {p66, m38, 0, 0x46}});
    for (const auto& [type, least, most] : {std::tuple{"s", 0x39, 0x3d}, std::tuple{"u", 0x3b, 0x3f}}) {
        both("min", type, VectorOp::two, m38, static_cast<uint8_t>(least), static_cast<uint8_t>(least));
        both("max", type, VectorOp::two, m38, static_cast<uint8_t>(most), static_cast<uint8_t>(most));
    }
    const std::pair<const char*, uint8_t> comparisons[] = {{"eq", 0}, {"ne", 4}, {"lt", 1}, {"le", 2},
                                                           {"gt", 6}, {"ge", 5}, {"lo", 1}, {"ls", 2},
                                                           {"hi", 6}, {"hs", 5}};
    for (const auto& [name, predicate] : comparisons)
        for (const char* type : {"s", "u", "b"})
            both(std::string("setp.") + name, type, VectorOp::compare, m3A, *type == 's' ? 0x1f : 0x1e,
                 *type == 's' ? 0x1f : 0x1e, predicate);
    t.emplace("lop3.b32", VectorOp{VectorOp::table, 4, {p66, m3A, 0, 0x25}});
    t.emplace("mul.wide.s32", VectorOp{VectorOp::product, 4, {p66, m38, 1, 0x28}, 0x25});
    t.emplace("mul.wide.u32", VectorOp{VectorOp::product, 4, {p66, m0F, 1, 0xf4}, 0x35});
    t.emplace("mad.wide.s32", VectorOp{VectorOp::product_add, 4, {p66, m38, 1, 0x28}, 0x25});
    t.emplace("mad.wide.u32", VectorOp{VectorOp::product_add, 4, {p66, m0F, 1, 0xf4}, 0x35});
    for (const char* key : {"resize.64.32", "cvt.u64.u32", "cvt.s64.u32"})
        t.emplace(key, VectorOp{VectorOp::widened, 4, {p66, m38, 0, 0x35}});
    for (const char* key : {"resize.s64.32", "cvt.s64.s32", "cvt.u64.s32"})
        t.emplace(key, VectorOp{VectorOp::widened, 4, {p66, m38, 0, 0x25}});
    for (const char* key : {"resize.32.64", "cvt.u32.u64", "cvt.s32.s64", "cvt.u32.s64", "cvt.s32.u64"})
        t.emplace(key, VectorOp{VectorOp::narrowed, 8, {pF3, m38, 0, 0x35}});
    for (const char* key : {"cvt.u32.u32", "cvt.s32.s32", "cvt.u32.s32", "cvt.s32.u32"})
        t.emplace(key, VectorOp{VectorOp::move, 4});
    for (const char* key : {"cvt.u64.u64", "cvt.s64.s64", "cvt.u64.s64", "cvt.s64.u64"})
        t.emplace(key, VectorOp{VectorOp::move, 8});
    const std::pair<const char*, uint8_t> predicates[] = {
        {"and", 0}, {"or", 1}, {"xor", 2}, {"not", 3}, {"mov", 4}};
    for (const auto& [name, kind] : predicates)
        t.emplace(std::string(name) + ".pred", VectorOp{VectorOp::predicate, 0, {}, kind});
}

}  // namespace

const VectorOp* vector_op(const std::string& key) {
    static const Table& table = *new Table([] {  // a thread in the background may outlive main
        Table t;
        floats(t);
        integers(t);
        return t;
    }());
    const auto found = table.find(key);
    return found == table.end() ? nullptr : &found->second;
}

LineOp line_op(const std::string& key) {
    static const auto& table =
        *new std::unordered_map<std::string, LineOp>{{"mov.b32", LineOp::copy},
                                                     {"mov.b64", LineOp::copy},
                                                     {"resize.64.32", LineOp::copy},
                                                     {"resize.s64.32", LineOp::copy},
                                                     {"resize.32.64", LineOp::copy},
                                                     {"cvt.u64.u32", LineOp::copy},
                                                     {"cvt.s64.u32", LineOp::copy},
                                                     {"cvt.s64.s32", LineOp::copy},
                                                     {"cvt.u64.s32", LineOp::copy},
                                                     {"cvt.u32.u64", LineOp::copy},
                                                     {"cvt.s32.s64", LineOp::copy},
                                                     {"cvt.u32.s64", LineOp::copy},
                                                     {"cvt.s32.u64", LineOp::copy},
                                                     {"cvt.u32.u32", LineOp::copy},
                                                     {"cvt.s32.s32", LineOp::copy},
                                                     {"cvt.u32.s32", LineOp::copy},
                                                     {"cvt.s32.u32", LineOp::copy},
                                                     {"cvt.u64.u64", LineOp::copy},
                                                     {"cvt.s64.s64", LineOp::copy},
                                                     {"cvt.u64.s64", LineOp::copy},
                                                     {"cvt.s64.u64", LineOp::copy},
                                                     {"add.b32", LineOp::add},
                                                     {"add.b64", LineOp::add},
                                                     {"sub.b32", LineOp::subtract},
                                                     {"sub.b64", LineOp::subtract},
                                                     {"mul.lo.b32", LineOp::multiply},
                                                     {"mul.lo.b64", LineOp::multiply},
                                                     {"mul.wide.s32", LineOp::multiply},
                                                     {"mul.wide.u32", LineOp::multiply},
                                                     {"mad.lo.b32", LineOp::multiply_add},
                                                     {"mad.lo.b64", LineOp::multiply_add},
                                                     {"mad.wide.s32", LineOp::multiply_add},
                                                     {"mad.wide.u32", LineOp::multiply_add},
                                                     {"shl.b32", LineOp::shift_left},
                                                     {"shl.b64", LineOp::shift_left}};
    const auto found = table.find(key);
    return found == table.end() ? LineOp::none : found->second;
}
bool widens(const std::string& key) {
    const VectorOp* op = vector_op(key);
    return op && (op->form == VectorOp::widened || op->form == VectorOp::product ||
                  op->form == VectorOp::product_add);
}
bool widens_signed(const std::string& key) {
    const VectorOp* op = vector_op(key);
    return op && (op->form == VectorOp::widened ? op->code.opcode : op->detail) == 0x25;
}

bool is_launch_constant(int64_t special) {
    return (special >= kNtidX && special <= kNctaidZ) || special == kDynamicBase || special == kZero;
}

bool memory_op(const std::string& key, MemoryOp& out) {
    static const auto& spaces =
        *new std::unordered_map<std::string, MemoryOp::Where>{{"global", MemoryOp::global},
                                                              {"generic", MemoryOp::global},
                                                              {"shared", MemoryOp::shared},
                                                              {"param", MemoryOp::param},
                                                              {"local", MemoryOp::local}};
    if (!key.starts_with("ld.") && !key.starts_with("st.")) return false;
    const size_t space = 3, behind = key.find('.', space);
    if (behind == std::string::npos) return false;
    const auto where = spaces.find(key.substr(space, behind - space));
    if (where == spaces.end()) return false;
    const bool several = key.compare(behind, 2, ".v") == 0;
    const size_t type = several ? behind + 3 : behind;
    const size_t reg = key.find('.', type + 1);
    out.count = several ? static_cast<uint8_t>(key[behind + 2] - '0') : 1;
    out.where = where->second;
    out.loads = key[0] == 'l';
    out.is_signed = key[type + 1] == 's';
    out.memory = static_cast<uint8_t>(std::stoul(key.substr(type + 2)) / 8);
    out.reg = static_cast<uint8_t>(std::stoul(key.substr(reg + 1)) / 8);
    return out.reg == 2 || out.reg == 4 || out.reg == 8;
}
bool atomic_op(const std::string& key, AtomicOp& out) {
    static const auto& kinds = *new std::unordered_map<std::string, AtomicOp::Kind>{
        {"add", AtomicOp::add},      {"and", AtomicOp::bit_and},   {"or", AtomicOp::bit_or},
        {"xor", AtomicOp::bit_xor},  {"exch", AtomicOp::exchange}, {"cas", AtomicOp::compare},
        {"min", AtomicOp::least},    {"max", AtomicOp::most},      {"inc", AtomicOp::increment},
        {"dec", AtomicOp::decrement}};
    if (!key.starts_with("atom.")) return false;
    const size_t type = key.rfind('.');
    const auto kind = kinds.find(key.substr(5, type - 5));
    const std::string name = key.substr(type + 1);
    if (kind == kinds.end() || (!name.ends_with("32") && !name.ends_with("64")) || name.size() != 3)
        return false;
    out.kind = kind->second;
    out.is_signed = name[0] == 's', out.is_float = name[0] == 'f';
    out.bytes = name.ends_with("64") ? 8 : 4;
    return true;
}
bool gives_one(const std::string& key) {
    return key.starts_with("vote.") || key.starts_with("redux.") || key == "activemask.b32";
}
bool loads_line(const std::string& key) {
    MemoryOp op;
    return memory_op(key, op) && op.loads && op.count == 1 && op.where != MemoryOp::local && op.reg > 2;
}

}  // namespace gpukernel::simgpu::compiler
