// An instruction against the forms that it may have (forms.h).
#include "simgpu/ptx/check/check.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "simgpu/ptx/check/forms.h"

namespace gpukernel::simgpu::ptx {

namespace {

constexpr std::pair<std::string_view, std::string_view> kSets[] = {
    {"$int", "u16|u32|u64|s16|s32|s64"},
    {"$round", "rn|rz|rm|rp"},
    {"$order", "eq|ne|lt|le|gt|ge"},
    {"$fcompare", "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"},
    {"$scope", "cta|cluster|gpu|sys"},
    {"$space", "const|global|local|param|param::entry|param::func|shared|shared::cta|shared::cluster"},
    {"$shared", "shared|shared::cta|shared::cluster"},
    {"$atomspace", "global|shared|shared::cta|shared::cluster"},
    {"$ldspace", "global|shared|shared::cta"},
    {"$sem", "relaxed|acquire|release|acq_rel"},
    {"$l1", "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate"},
    {"$l2", "L2::evict_normal|L2::evict_first|L2::evict_last"},
    {"$l2size", "L2::64B|L2::128B|L2::256B"},
    {"$texel", "u32|s32|f16|f32|f16x2"},
    {"$clamp", "trap|clamp|zero"},
    {"$query",
     "width|height|depth|channel_data_type|channel_order|normalized_coords|filter_mode|addr_mode_0|"
     "addr_mode_1|addr_mode_2|array_size|num_mipmap_levels|num_samples|memory_layout|force_unnormalized_"
     "coords"},
    {"$v", "u32|s32"},
    {"$element", "f16|bf16|tf32|f32|f64|s8|u8|s4|u4|b1|s32|e4m3|e5m2|e3m2|e2m3|e2m1|ue8m0|ue4m3"},
    {"$kind", "kind::f8f6f4|kind::mxf8f6f4|kind::mxf4|kind::mxf4nvf4"},
    {"$scale", "scale_vec::1X|scale_vec::2X|scale_vec::4X"},
    {"$global", "global"},
    {"$dimensions", "1d|2d|3d|4d|5d"},
    {"$tile", "tile|tile::gather4|im2col|im2col::w|im2col::w::128"},
    {"$store", "tile|tile::scatter4|im2col_no_offs"},
    {"$mapfield",
     "global_address|rank|box_dim|global_dim|global_stride|element_stride|elemtype|interleave_layout|"
     "swizzle_mode|swizzle_atomicity|fill_mode"},
    {"$any", "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64"},
};

std::vector<std::string_view> split(std::string_view text, char at) {
    std::vector<std::string_view> out;
    while (!text.empty()) {
        const size_t end = std::min(text.find(at), text.size());
        if (end) out.push_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return out;
}

using Types = std::map<char, Type>;  // T, U, V: what a form's types are in an instruction

struct Group {
    std::vector<std::string_view> names;
    bool optional = false;
    char captures = 0;
};
struct Pattern {                    // of one operand
    std::string_view what, second;  // =T|p: what follows the bar
    bool written = false, optional = false, wider = false, special = false, list = false,
         second_optional = false;
    uint32_t times = 1;
};
struct Shape {
    std::vector<Group> groups;
    std::vector<Pattern> operands;
    bool open = false;  // the decoder knows more about the operands
};

void add_names(std::vector<std::string_view>& to, std::string_view text) {
    for (std::string_view name : split(text, '|')) {
        const auto* set =
            std::find_if(std::begin(kSets), std::end(kSets), [&](auto& s) { return s.first == name; });
        if (set != std::end(kSets))
            add_names(to, set->second);
        else
            to.push_back(name);
    }
}

Shape shape_of(const Form& form) {
    Shape shape;
    for (std::string_view text : split(form.modifiers, ' ')) {
        Group group;
        if (text.size() > 1 && text[1] == ':') group.captures = text[0], text.remove_prefix(2);
        if (text.ends_with('?')) group.optional = true, text.remove_suffix(1);
        add_names(group.names, text);
        shape.groups.push_back(std::move(group));
    }
    for (std::string_view text : split(form.operands, ' ')) {
        if (text == "...") {
            shape.open = true;
            continue;
        }
        Pattern p;
        if (text.ends_with('?') && text.find('|') == std::string_view::npos)
            p.optional = true, text.remove_suffix(1);
        if (text.starts_with('=')) p.written = true, text.remove_prefix(1);
        if (text.starts_with('%')) p.special = true, text.remove_prefix(1);
        if (text.starts_with('~')) p.wider = true, text.remove_prefix(1);
        if (text.starts_with('2')) p.times = 2, text.remove_prefix(1);
        if (const size_t bar = text.find('|'); bar != std::string_view::npos) {
            p.second = text.substr(bar + 1);
            if (p.second.ends_with('?')) p.second_optional = true, p.second.remove_suffix(1);
            text = text.substr(0, bar);
        }
        if (text.ends_with('*')) p.list = true, text.remove_suffix(1);
        p.what = text;
        shape.operands.push_back(p);
    }
    return shape;
}

using Shapes = std::multimap<std::string_view, Shape>;
const Shapes& shapes() {
    static const Shapes all = [] {
        Shapes out;
        for (const auto& forms :
             {integer_forms(), floating_forms(), memory_forms(), control_forms(), special_forms()})
            for (const Form& form : forms) out.emplace(form.name, shape_of(form));
        return out;
    }();
    return all;
}

// m16n8k16 and its like: which of them there are, the decoder knows.
bool is_shape(std::string_view part) {
    int m = 0, n = 0, k = 0, end = 0;
    const std::string text(part.substr(0, 24));
    return std::sscanf(text.c_str(), "m%3dn%3dk%3d%n", &m, &n, &k, &end) == 3 &&
           static_cast<size_t>(end) == part.size();
}

bool names(const Group& group, std::string_view part) {
    if (group.names[0] == "$shape" || group.names[0] == "$wshape") return is_shape(part);
    if (group.names[0] == "$tensor") return true;  // nothing of these is supported: no modifier changes that
    return std::find(group.names.begin(), group.names.end(), part) != group.names.end();
}

bool group_repeats(const Group& group) { return group.names[0] == "$tensor"; }

bool of_types(const Group& group) {
    Type ignored;
    return type_named(group.names[0], ignored);
}

// Modifiers stand in any order, types among each other in theirs.
bool fits(const std::vector<Group>& groups, const std::vector<std::string>& parts, Types& types) {
    std::vector<bool> used(groups.size()), seen(groups.size());
    for (size_t i = 1; i < parts.size(); ++i) {
        size_t g = 0;
        Type ignored;
        const bool is_type = type_named(parts[i], ignored);
        while (g < groups.size() && (used[g] || !names(groups[g], parts[i]))) {
            if (is_type && !used[g] && !groups[g].optional && of_types(groups[g])) return false;
            ++g;
        }
        if (g == groups.size()) return false;
        used[g] = group_repeats(groups[g]) ? false : true;
        seen[g] = true;
        Type type;
        if (groups[g].captures && type_named(parts[i], type)) types[groups[g].captures] = type;
    }
    for (size_t g = 0; g < groups.size(); ++g)
        if (!seen[g] && !groups[g].optional) return false;
    return true;
}

bool is_float(Type t) { return t == Type::f16 || t == Type::f32 || t == Type::f64; }
bool is_bits(Type t) {
    return t == Type::b8 || t == Type::b16 || t == Type::b32 || t == Type::b64 || t == Type::b128;
}
bool is_integer(Type t) {
    return (t >= Type::u8 && t <= Type::s8) || t == Type::u16 || t == Type::s16 || t == Type::u32 ||
           t == Type::s32 || t == Type::u64 || t == Type::s64;
}
// What only bits hold: packed pairs, formats of tensor cores.
bool is_packed(Type t) { return !is_float(t) && !is_bits(t) && !is_integer(t) && t != Type::pred; }

// Whether a register of type `has` goes where an instruction wants `wants` (PTX ISA 9.2, 9.4.1).
bool agrees(Type has, Type wants, bool wider) {
    if (has == Type::pred || wants == Type::pred) return has == wants;
    const uint32_t size = size_of(has), wanted = size_of(wants);
    if (wider ? size < wanted : size != wanted) return false;
    if (is_bits(has) || is_bits(wants)) return true;
    if (has == Type::f16x2 && is_integer(wants)) return true;
    if (is_packed(wants) || is_packed(has)) return has == wants;
    return is_float(has) ? is_float(wants) && size == wanted : is_integer(wants);
}

struct Checker {
    const Instruction& in;
    const FunctionTree& tree;
    const Types& types;
    std::string why{};
    size_t at = 0;  // the operand that is looked at, for the text

    const Variable& variable(const Operand& o) const { return tree.variables[static_cast<size_t>(o.var)]; }
    bool no(std::string text) {
        why = "operand " + std::to_string(at + 1) + ": " + std::move(text);
        return false;
    }

    bool type_of(const Pattern& p, Type& type) const {
        if (p.what == "T" || p.what == "U" || p.what == "V") {
            const auto it = types.find(p.what[0]);
            if (it == types.end()) return false;
            type = it->second;
        } else if (p.what == "$dot") {
            const auto t = types.find('T'), u = types.find('U');
            type = t->second == Type::u32 && u->second == Type::u32 ? Type::u32 : Type::s32;
        } else if (!type_named(p.what, type)) {
            return false;
        }
        if (p.times == 2)
            type = type == Type::u16   ? Type::u32
                   : type == Type::s16 ? Type::s32
                   : type == Type::u32 ? Type::u64
                                       : Type::s64;
        return true;
    }

    bool value(const Operand& o, Type type, bool written, bool wider) {
        if (o.kind == Operand::variable) {
            const Variable& v = variable(o);
            if (v.where != Where::reg)
                return written ? no("'" + o.name + "' is no register")
                               : no("'" + o.name + "' is an address, not a register");
            if (written && o.value) return no("the result goes to a register");
            if (written && o.negated) return no("the result is not negated");
            if (o.negated && type != Type::pred) return no("'" + o.name + "' is negated");
            if (!o.part.empty()) return no("'" + o.name + "' has no part '." + o.part + "'");
            if (!agrees(v.type, type, wider))
                return no("'" + o.name + "' is ." + std::string(name_of(v.type)) + ", and ." +
                          std::string(name_of(type)) + " is needed");
            return true;
        }
        if (written)
            return no(o.kind == Operand::sink ? "the result cannot be left out"
                                              : "the result goes to a register");
        switch (o.kind) {
            case Operand::integer:
                if (is_float(type) || type == Type::bf16 || type == Type::f16x2 || type == Type::bf16x2)
                    return no("a floating-point number is needed, not an integer");
                return true;
            case Operand::floating32:
            case Operand::floating64:
                // 0f3F800000 and 0d3FF0000000000000 are bits, too, of their own width.
                if (type == (o.kind == Operand::floating32 ? Type::b32 : Type::b64)) return true;
                if (!is_float(type)) return no("an integer is needed, not a floating-point number");
                return true;
            case Operand::special:
                if (type == Type::pred && o.name == "%is_explicit_cluster") return true;
                return no("a special register like '" + o.name + "' is read by mov, not by this instruction");
            case Operand::symbol:
            case Operand::element:
                return no("'" + o.name + "' is no register");
            default:
                return no("a register or a constant is needed");
        }
    }

    // Special registers have 32 bits, and some 64.
    static bool is_longer(const Operand& o) {
        return o.name.find("64") != std::string::npos || o.name == "%globaltimer" ||
               o.name == "%current_graph_exec" || o.name == "%gridid";
    }

    bool place(const Operand& o, bool named) {
        if (o.kind == Operand::variable && variable(o).where == Where::reg) {
            const Type type = variable(o).type;
            return (size_of(type) >= 4 && size_of(type) <= 8 && !is_float(type) && !is_packed(type) &&
                    type != Type::pred) ||
                   no("'" + o.name + "' is no address: it has not 32 or 64 bits of an integer");
        }
        const bool names =
            o.kind == Operand::symbol || o.kind == Operand::variable || o.kind == Operand::element;
        return (named && names) || no("an address in a register is needed");
    }

    // mov: a register, a constant, the address of a variable or function, a special register, or the parts of
    // one register in others (PTX ISA 9.7.9).
    bool moved(const Operand& o, bool written) {
        const Type type = types.at('T');
        const size_t elements = vector_length();
        if (o.kind == Operand::vector) {
            const size_t count = o.parts.size();
            const Operand& other = in.operands[written ? 1 : 0];
            if (elements == 1 && (count != 2 && count != 4)) return no("a vector has two or four elements");
            if (elements == 1 && !is_bits(type)) return no("the parts of a register are moved as bits");
            if (elements == 1 && other.kind == Operand::vector)
                return no("one side is a vector, the other is none");
            if (elements > 1 && count != elements)
                return no("a vector of " + std::to_string(elements) + " is needed");
            if (size_of(type) * elements > 16) return no("a vector has up to 16 bytes");
            for (const Operand& part : o.parts) {
                if (part.kind == Operand::sink && written) continue;
                if (elements > 1) {
                    if (!value(part, type, written, false)) return false;
                } else if (part.kind == Operand::variable && variable(part).where == Where::reg) {
                    if (size_of(variable(part).type) * count != size_of(type) ||
                        variable(part).type == Type::pred)
                        return no("'" + part.name + "' is no " + std::to_string(count) + "th of ." +
                                  std::string(name_of(type)));
                } else if (written || part.kind != Operand::integer) {
                    return no("an element is no register");
                }
            }
            return true;
        }
        if (elements > 1 && (written || o.kind != Operand::special)) return no("a vector is needed");
        if (written) return value(o, type, true, false);
        if (o.kind == Operand::special) {
            if (type == Type::pred)
                return o.name == "%is_explicit_cluster" || no("'" + o.name + "' is no predicate");
            const bool longer = is_longer(o);
            if (is_float(type) || type == Type::b128) return no("a special register is an integer");
            if (o.name != "%gridid" && longer != (size_of(type) == 8))
                return no("'" + o.name + "' has " + (longer ? "64" : "32") + " bits");
            return true;
        }
        const bool names = o.kind == Operand::symbol || o.kind == Operand::element ||
                           (o.kind == Operand::variable && variable(o).where != Where::reg);
        if (!names) return value(o, type, false, false);
        return (!is_float(type) && (size_of(type) == 4 || size_of(type) == 8)) ||
               no("the address of '" + o.name + "' has 32 or 64 bits");
    }

    bool address(const Operand& o) {
        if (o.kind == Operand::element)
            return (in.parts[0] != "atom" && in.parts[0] != "red") || no("an address in brackets is needed");
        if (o.kind != Operand::address) return no("an address in brackets is needed");
        const Operand& base = o.parts[0];
        if (!base.part.empty() || base.negated) return no("'" + base.name + "' is no address");
        if (base.kind == Operand::variable && variable(base).where == Where::reg) return place(base, false);
        return base.kind == Operand::symbol || base.kind == Operand::variable ||
               base.kind == Operand::integer || no("'" + base.name + "' is no address");
    }

    bool one(const Operand& o, const Pattern& p) {
        if (p.what == "any") return true;
        if (p.what == "mov") return moved(o, at == 0);
        if (p.what == "where" || p.what == "name") return place(o, p.what == "name");
        if (p.what == "l")
            return o.kind == Operand::symbol || o.kind == Operand::variable || no("a name is needed");
        if (p.what == "i") return o.kind == Operand::integer || no("an integer constant is needed");
        if (p.what == "@") return address(o);
        if (!p.second.empty()) {
            if (o.kind != Operand::pair) {
                if (p.second_optional || p.what == "p" || p.second == "p") return first(o, p);
                return no("two results are needed");
            }
            Pattern other = p;
            other.what = p.second, other.second = {};
            return either(o.parts[0], p) && either(o.parts[1], other);
        }
        return first(o, p);
    }
    size_t vector_length() const {
        for (const std::string& part : in.parts)
            if (part == "v2" || part == "v4" || part == "v8") return static_cast<size_t>(part[1] - '0');
        return 1;
    }
    bool either(const Operand& o, const Pattern& p) { return o.kind == Operand::sink || first(o, p); }
    bool first(const Operand& o, const Pattern& p) {
        Type type;
        if (p.what == "p")
            type = Type::pred;
        else if (!type_of(p, type))
            return no("it has no type");
        const size_t elements = p.list ? vector_length() : 1;
        if (o.kind == Operand::vector && p.list) {
            if (o.parts.size() != elements)
                return no("a vector of " + std::to_string(elements) + " is needed, not of " +
                          std::to_string(o.parts.size()));
            for (const Operand& part : o.parts) {
                if (part.kind == Operand::sink && p.written) continue;
                if (!value(part, type, p.written, p.wider)) return false;
            }
            return true;
        }
        if (elements > 1) return no("a vector is needed");
        if (o.kind == Operand::special && p.special)
            return size_of(type) <= (is_longer(o) ? 8 : 4) || no("'" + o.name + "' has 32 bits");
        if (o.kind == Operand::sink && p.written && in.parts[0] == "atom") return true;
        return value(o, type, p.written, p.wider);
    }

    bool operands(const Shape& shape) {
        const auto& list = in.operands;
        size_t needed = 0;
        for (const Pattern& p : shape.operands) needed += !p.optional;
        if (list.size() < needed || (!shape.open && list.size() > shape.operands.size())) {
            const std::string most = shape.open ? " or more"
                                     : shape.operands.size() != needed
                                         ? " to " + std::to_string(shape.operands.size())
                                         : "";
            why =
                "it takes " + std::to_string(needed) + most + " operands, not " + std::to_string(list.size());
            return false;
        }
        for (at = 0; at < std::min(list.size(), shape.operands.size()); ++at)
            if (!one(list[at], shape.operands[at])) return false;
        return true;
    }
};

// The forms whose modifiers an instruction has.  A text says the same few names again and again.
struct Match {
    const Shape* shape;
    Types types;
};
const std::vector<Match>& matches(const Instruction& in) {
    constexpr size_t kMostNames = 512, kLongest = 128;  // what a thread keeps of the texts that it has read
    thread_local std::unordered_map<std::string, std::vector<Match>> known;
    if (const auto it = known.find(in.text); it != known.end()) return it->second;
    if (known.size() >= kMostNames || in.text.size() > kLongest) known.clear();
    std::vector<Match> found;
    const auto [first, last] = shapes().equal_range(in.parts[0]);
    for (auto it = first; it != last; ++it) {
        Types types;
        if (fits(it->second.groups, in.parts, types)) found.push_back({&it->second, types});
    }
    return known[in.text.size() > kLongest ? std::string() : in.text] = std::move(found);
}

[[noreturn]] void wrong(const Instruction& in, const FunctionTree& tree, const std::string& why) {
    throw SyntaxError{tree.newer ? Status::unsupported : Status::invalid_ptx, in.line, in.text + ": " + why};
}

}  // namespace

void check(const Instruction& in, const FunctionTree& tree) {
    const auto [first, last] = shapes().equal_range(in.parts[0]);
    if (first == last)  // maybe a newer one than these tables: an error when the kernel is launched
        throw SyntaxError{Status::unsupported, in.line,
                          "instruction '" + in.text + "' is not supported by the simulated GPU"};
    std::string why;
    const std::vector<Match>& candidates = matches(in);
    for (const Match& match : candidates) {
        Checker checker{in, tree, match.types};
        if (checker.operands(*match.shape)) {
            if (in.parts.back() == "f32x2" && tree.target_sm < 100)
                wrong(in, tree, "it needs .target sm_100 or newer");
            return;
        }
        why = std::move(checker.why);
    }
    if (!candidates.empty()) wrong(in, tree, why);
    for (size_t i = 1; i < in.parts.size(); ++i) {
        const bool has = std::any_of(first, last, [&](const auto& entry) {
            const auto& groups = entry.second.groups;
            return std::any_of(groups.begin(), groups.end(),
                               [&](const Group& g) { return names(g, in.parts[i]); });
        });
        if (!has) wrong(in, tree, "'" + in.parts[0] + "' has no modifier '." + in.parts[i] + "'");
    }
    wrong(in, tree, "no form of '" + in.parts[0] + "' has these modifiers");
}

}  // namespace gpukernel::simgpu::ptx
