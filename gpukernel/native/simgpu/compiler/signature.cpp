// One row for each family of names.  A shape says the size of the result and then of each operand: p a
// predicate, h 2 bytes, w 4, d 8, q 16, a point where the operation has none.
#include "simgpu/compiler/signature.h"

#include <unordered_map>

#include "simgpu/compiler/known.h"
#include "simgpu/exec/processor.h"

namespace gpukernel::simgpu::compiler {
namespace {

uint32_t bytes_of(char size) {
    return size == 'h' ? 2 : size == 'w' ? 4 : size == 'd' ? 8 : size == 'q' ? 16 : 0;
}

using Shapes = std::unordered_map<std::string, std::string>;

// `names` are separated by blanks; # in them is the type, T in a shape its size.
void family(Shapes& shapes, const std::string& names, const std::string& types, const std::string& shape) {
    for (size_t at = 0; at < names.size();) {
        const size_t end = std::min(names.find(' ', at), names.size());
        const std::string name = names.substr(at, end - at);
        for (size_t t = 0; t < types.size();) {
            const size_t stop = std::min(types.find(' ', t), types.size());
            const std::string type = types.substr(t, stop - t);
            const std::string digits = type.substr(type.find_first_of("0123456789"));
            const char size = digits.starts_with("8") || digits.starts_with("16") ? 'h'
                              : digits.starts_with("32")                          ? 'w'
                                                                                  : 'd';
            std::string key = name, form = shape;
            if (const size_t hash = key.find('#'); hash != std::string::npos) key.replace(hash, 1, type);
            for (char& c : form)
                if (c == 'T') c = size;
            shapes.emplace(key, form);
            t = stop + 1;
        }
        at = end + 1;
    }
}

const Shapes& shapes() {
    static const Shapes& all = *new Shapes([] {  // a thread in the background may outlive main
        Shapes s;
        const char* const bits = "b16 b32 b64";
        family(s, "add.# sub.# mul.lo.# and.# or.# xor.#", bits, "TTT");
        family(s, "mad.lo.#", bits, "TTTT");
        family(s, "not.# cnot.# neg.# mov.#", bits, "TT");
        family(s, "shl.# shr.#", bits, "TTw");
        family(s, "selp.#", bits, "TTTp");
        family(s, "slct.s32.# slct.f32.#", bits, "TTTw");
        family(s, "set.#", bits, "Tp");
        const char* const integers = "u16 s16 u32 s32 u64 s64";
        family(s, "min.# max.# mul.hi.# div.# rem.#", integers, "TTT");
        family(s, "shr.#", integers, "TTw");
        family(s, "sad.# mad.hi.#", integers, "TTTT");
        family(s, "abs.#", "s16 s32 s64", "TT");
        family(s, "mul.wide.#", "u16 s16", "whh");
        family(s, "mul.wide.#", "u32 s32", "dww");
        family(s, "mad.wide.#", "u16 s16", "whhw");
        family(s, "mad.wide.#", "u32 s32", "dwwd");
        family(s, "mul24.lo.# mul24.hi.# add.sat.# sub.sat.#", "u32 s32", "www");
        family(s, "mad24.lo.# mad24.hi.# mad24.hi.sat.# mad.hi.sat.#", "u32 s32", "wwww");
        family(s, "popc.# clz.#", "b32 b64", "wT");
        family(s, "brev.#", "b32 b64", "TT");
        family(s, "bfind.# bfind.shiftamt.#", "u32 s32 u64 s64", "wT");
        family(s, "bfe.#", "u32 s32 u64 s64", "TTww");
        family(s, "bfi.#", "b32 b64", "TTTww");
        family(s, "prmt.# prmt.#.f4e prmt.#.b4e prmt.#.rc8 prmt.#.ecl prmt.#.ecr prmt.#.rc16", "b32", "wwww");
        family(s, "shf.l.clamp.# shf.r.clamp.# shf.l.wrap.# shf.r.wrap.# lop3.#", "b32", "wwww");
        family(s, "dp4a.u32.# dp4a.s32.# dp2a.lo.u32.# dp2a.lo.s32.# dp2a.hi.u32.# dp2a.hi.s32.#", "u32 s32",
               "wwww");
        family(s, "add.cc.# addc.# addc.cc.# sub.cc.# subc.# subc.cc.#", "b32 b64", "TTT");
        family(s, "mad.lo.cc.# madc.lo.# madc.lo.cc.#", "b32 b64", "TTTT");
        family(s, "mad.hi.cc.# madc.hi.# madc.hi.cc.#", "u32 s32 u64 s64", "TTTT");
        const char* const floats = "f32 f64";
        family(s, "add.# sub.# mul.# div.# min.# max.# copysign.#", floats, "TTT");
        family(s, "fma.# mad.#", floats, "TTTT");
        family(s, "abs.# neg.# rcp.# sqrt.# sat.# rsqrt.#", floats, "TT");
        family(s, "sin.# cos.# lg2.# ex2.# tanh.# flush.# relu.#", "f32", "TT");
        family(s, "rcp.ftz64.# rsqrt.ftz64.#", "f64", "TT");
        family(s, "min.NaN.# max.NaN.#", "f32", "TTT");
        for (const char* half : {"f16", "bf16"})
            for (const char* pair : {"", "x2"}) {
                const std::string type = std::string(half) + pair;
                const char size = *pair ? 'w' : 'h';
                for (const char* name :
                     {"add", "sub", "mul", "min", "max", "min.NaN", "max.NaN", "min.xorsign.abs",
                      "max.xorsign.abs", "min.NaN.xorsign.abs", "max.NaN.xorsign.abs"})
                    s.emplace(std::string(name) + "." + type, std::string(3, size));
                for (const char* name : {"neg", "abs", "sat", "relu", "flush", "ex2", "tanh"})
                    s.emplace(std::string(name) + "." + type, std::string(2, size));
                s.emplace("fma." + type, std::string(4, size));
            }
        const char* const compared = "s16 u16 b16 s32 u32 b32 s64 u64 b64 f16 bf16 f32 f64";
        family(s, "setp.eq.# setp.ne.# setp.lt.# setp.le.# setp.gt.# setp.ge.#", compared, "pTT");
        family(s, "setp.lo.# setp.ls.# setp.hi.# setp.hs.#", "u16 u32 u64", "pTT");
        family(s, "setp.equ.# setp.neu.# setp.ltu.# setp.leu.# setp.gtu.# setp.geu.# setp.num.# setp.nan.#",
               "f16 bf16 f32 f64", "pTT");
        family(s, "testp.#", floats, "pT");
        const char* const numbers[] = {"u8",  "s8",  "u16", "s16", "u32", "s32",
                                       "u64", "s64", "f32", "f64", "f16", "bf16"};
        auto size = [](std::string_view type) {
            return type.ends_with("64") ? 'd' : type.ends_with("32") ? 'w' : 'h';
        };
        for (const char* to : numbers)
            for (const char* from : numbers)
                for (const char* how : {"", "sat.", "rni.", "rzi.", "rmi.", "rpi.", "rz.", "rm.", "rp."})
                    s.emplace(std::string("cvt.") + how + to + "." + from, std::string{size(to), size(from)});
        s.merge(Shapes{{"resize.16.32", "hw"},
                       {"resize.16.64", "hd"},
                       {"resize.32.64", "wd"},
                       {"resize.32.16", "wh"},
                       {"resize.64.16", "dh"},
                       {"resize.64.32", "dw"},
                       {"resize.s32.16", "wh"},
                       {"resize.s64.16", "dh"},
                       {"resize.s64.32", "dw"},
                       {"resize.8.16", "hh"},
                       {"high.8.16", "hh"},
                       {"high.16.32", "hw"},
                       {"high.32.64", "wd"},
                       {"pack.16.8", "hhh"},
                       {"pack.32.16", "whh"},
                       {"pack.64.32", "dww"},
                       {"cvt.f16x2.f32", "www"},
                       {"cvt.bf16x2.f32", "www"},
                       {"cvt.rz.f16x2.f32", "www"},
                       {"cvt.rz.bf16x2.f32", "www"},
                       {"pack.128.64", "qdd"},
                       {"resize.64.128", "dq"},
                       {"high.64.128", "dq"},
                       {"mov.b128", "qq"},
                       {"cvt.pack", "wwww"},
                       {"video", "wwww"},
                       {"fns.b32", "wwww"},
                       {"relu.s32", "ww"},
                       {"relu.s16x2", "ww"},
                       {"add.u16x2", "www"},
                       {"add.s16x2", "www"},
                       {"min.u16x2", "www"},
                       {"max.u16x2", "www"},
                       {"min.s16x2", "www"},
                       {"max.s16x2", "www"},
                       {"szext.clamp.u32", "www"},
                       {"szext.clamp.s32", "www"},
                       {"szext.wrap.u32", "www"},
                       {"szext.wrap.s32", "www"},
                       {"bmsk.clamp.b32", "www"},
                       {"bmsk.wrap.b32", "www"},
                       {"and.pred", "ppp"},
                       {"or.pred", "ppp"},
                       {"xor.pred", "ppp"},
                       {"not.pred", "pp"},
                       {"mov.pred", "pp"},
                       {"mode", ""},
                       {"nothing", ""},
                       {"touch", ""},
                       {"special.16", "h"},
                       {"special.32", "w"},
                       {"special.64", "d"},
                       {"local.32", "w"},
                       {"local.64", "d"},
                       {"cvta.shared", "dd"},
                       {"cvta.local", "dd"},
                       {"cvta.param", "dd"},
                       {"cvta.to", "dd"},
                       {"isspacep", "pd"},
                       {"activemask.b32", "w"},
                       {"vote.ballot.b32", "wp"},
                       {"vote.all.pred", "pp"},
                       {"vote.any.pred", "pp"},
                       {"vote.uni.pred", "pp"},
                       {"shfl.up.b32", "wwww"},
                       {"shfl.down.b32", "wwww"},
                       {"shfl.bfly.b32", "wwww"},
                       {"shfl.idx.b32", "wwww"},
                       {"redux.add.u32", "ww"},
                       {"redux.add.s32", "ww"},
                       {"redux.min.u32", "ww"},
                       {"redux.max.u32", "ww"},
                       {"redux.min.s32", "ww"},
                       {"redux.max.s32", "ww"},
                       {"redux.and.b32", "ww"},
                       {"redux.or.b32", "ww"},
                       {"redux.xor.b32", "ww"},
                       {"match.any.b32", "ww"},
                       {"match.all.b32", "ww"},
                       {"match.all.b64", "wd"},
                       {"match.any.b64", "wd"},
                       {"elect", "w"},
                       {"mapa.b32", "www"},
                       {"mapa.b64", "ddw"},
                       {"getctarank.b32", "ww"},
                       {"getctarank.b64", "wd"},
                       {"cp.async", ".ddw"},
                       {"cp.async.bulk", ".ddw"},
                       {"cache_policy", ".d"},
                       {"mbarrier.init", ".dw"},
                       {"mbarrier.inval", ".dw"},
                       {"mbarrier.arrive", ".dw"},
                       {"mbarrier.arrive_drop", ".dw"},
                       {"mbarrier.expect_tx", ".dw"},
                       {"mbarrier.complete_tx", ".dw"},
                       {"mbarrier.arrive.expect_tx", ".dw"},
                       {"mbarrier.wait", ".dd"},
                       {"mbarrier.wait.parity", ".dw"},
                       {"mbarrier.pending_count", "wd"}});
        return s;
    }());
    return all;
}

uint32_t number_behind(const std::string& key, size_t at) {
    while (at < key.size() && !(key[at] >= '0' && key[at] <= '9')) ++at;
    return at < key.size() ? static_cast<uint32_t>(std::stoul(key.substr(at))) : 0;
}

// ld.SPACE.[vN.]MEMORY.REGISTER and st the same way round.
void load_or_store(const Function& function, const Op& op, Signature& out) {
    const std::string& key = out.key;
    const bool loads = key.starts_with("ld.");
    const uint32_t bytes = number_behind(key, key.rfind('.')) / 8;
    out.reads.push_back({op.a, op.sub & 1 ? 4u : 8u});
    std::vector<Access>& values = loads ? out.writes : out.reads;
    const size_t v = key.find(".v");
    const uint32_t count = v == std::string::npos ? 0 : static_cast<uint32_t>(key[v + 2] - '0');
    constexpr uint32_t kSink = 0xfffffffeu;
    for (uint32_t n = 0; n < count; ++n)
        if (function.lists[op.extra + n] != kSink) values.push_back({function.lists[op.extra + n], bytes});
    if (!count) values.push_back({loads ? op.dst : op.b, bytes});
}

void atomic(const Op& op, Signature& out) {
    const std::string& key = out.key;
    const bool pair = key.ends_with("x2");
    const uint32_t bytes = pair ? 4 : number_behind(key, key.rfind('.')) / 8;
    out.reads = {{op.a, 8}, {op.b, bytes}};
    if (key.starts_with("atom.cas")) out.reads.push_back({op.c, bytes});
    if (op.sub2 & 1) out.writes.push_back({op.dst, bytes});
}

// Instructions on matrices, whose operands the decoder has listed.
bool on_matrices(const std::string& key) {
    return key.starts_with("mma.") || key == "stmatrix" || key == "wmma.store" || key == "ldmatrix" ||
           key == "wmma.load" || key == "movmatrix";
}

// Instructions of a whole warp on matrices, whose registers the decoder has listed.
bool matrix(const Function& function, const Op& op, Signature& out) {
    const std::string& key = out.key;
    const bool multiplies = key.starts_with("mma."), stores = key == "stmatrix" || key == "wmma.store";
    if (!on_matrices(key)) return false;
    const MatrixPlan& plan = function.matrices[op.extra];
    const auto add = [](const Fragment& f, std::vector<Access>& to) {
        for (uint32_t n = 0; n < f.count; ++n) to.push_back({f.slot[n], f.element == Element::f64 ? 8u : 4u});
    };
    if (multiplies || key == "movmatrix") {
        for (const Fragment* f : {&plan.a, &plan.b, &plan.c}) add(*f, out.reads);
    } else {
        out.reads.push_back({op.a, 8});
        if (key.starts_with("wmma.")) out.reads.push_back({op.b, 4});
    }
    add(plan.d, stores ? out.reads : out.writes);
    return true;
}

void control(const Function& function, const Op& op, Signature& out) {
    switch (op.control) {
        case Control::branch_table:
            out.reads.push_back({op.a, 4});
            break;
        case Control::call:
            if (function.calls[op.extra].builtin == Builtin::none && function.calls[op.extra].callee < 0)
                out.reads.push_back({op.a, 8});
            break;
        case Control::warp_sync:
            out.reads.push_back({op.aux, 4});
            break;
        case Control::barrier:
        case Control::barrier_arrive:
            out.reads.push_back({op.a, 4});
            if (op.sub2 & 1) out.reads.push_back({op.b, 4});
            if (op.sub) {
                out.reads.push_back({op.c, 0});
                out.writes.push_back({op.dst, op.sub == 1 ? 4u : 0u});
                out.keeps = true;
            }
            break;
        default:
            break;
    }
}

}  // namespace

const char* control_name(Control control) {
    switch (control) {
        case Control::branch:
            return "bra";
        case Control::branch_table:
            return "brx.idx";
        case Control::ret:
            return "ret";
        case Control::exit:
            return "exit";
        case Control::call:
            return "call";
        case Control::warp_sync:
            return "warp_sync";
        case Control::barrier:
            return "barrier";
        case Control::barrier_arrive:
            return "barrier.arrive";
        case Control::trap:
            return "trap";
        case Control::yield:
            return "yield";
        default:
            return "";
    }
}

std::set<std::string> known_operations() {
    std::set<std::string> all;
    for (const std::string_view name : handler_names()) {
        const std::string key(name.substr(0, name.find('@')));
        if (key.starts_with("ld.") || key.starts_with("st.") || key.starts_with("atom.") ||
            on_matrices(key) || shapes().contains(key))
            all.insert(key);
    }
    for (int c = 0; c <= static_cast<int>(Control::yield); ++c)
        if (const char* name = control_name(static_cast<Control>(c)); *name) all.insert(name);
    return all;
}

std::optional<Signature> signature_of(const Function& function, const Op& op) {
    Signature out;
    control(function, op, out);
    if (op.control != Control::none && op.control != Control::warp_sync) return out;
    if (!op.fn) return out;
    out.key = handler_name(op.fn);
    if (out.key.empty()) return std::nullopt;
    if (out.key.starts_with("ld.") || out.key.starts_with("st.")) {
        load_or_store(function, op, out);
        return out;
    }
    if (out.key.starts_with("atom.")) {
        atomic(op, out);
        return out;
    }
    if (matrix(function, op, out)) return out;
    out.key = out.key.substr(0, out.key.find('@'));
    const auto found = shapes().find(out.key);
    if (found == shapes().end()) return std::nullopt;
    const std::string& shape = found->second;
    if (!shape.empty() && shape[0] != '.') out.writes.push_back({op.dst, bytes_of(shape[0])});
    if (op.sub2 & 1 && out.key.starts_with("mbarrier."))  // the state, or whether it has ended
        out.writes.push_back({op.dst, out.key.starts_with("mbarrier.wait") ? 0u : 8u});
    const uint32_t operands[] = {op.a, op.b, op.c, op.extra};
    for (size_t n = 1; n < shape.size(); ++n) out.reads.push_back({operands[n - 1], bytes_of(shape[n])});
    // Carry chains keep their flags in a predicate of their own.
    if (out.key.starts_with("addc.") || out.key.starts_with("subc.") || out.key.starts_with("madc."))
        out.reads.push_back({op.extra, 0});
    if (out.key.find(".cc.") != std::string::npos) out.writes.push_back({op.extra, 0});
    if (op.sub2 & 1 &&
        (out.key.starts_with("shfl.") || out.key.starts_with("match.all") || out.key == "elect"))
        out.writes.push_back({op.extra, 0});
    return out;
}

}  // namespace gpukernel::simgpu::compiler
