// One function's instructions become operations: a handler by normalised name, and operands as slots.
#include <cstring>

#include "simgpu/ptx/check/check.h"
#include "simgpu/ptx/decode/decoder.h"

namespace gpukernel::simgpu::ptx {

namespace {
constexpr size_t kLongestStretch = 4096;  // operations without a place where a kernel can be paused
}

Decoder::Decoder(const FunctionTree& tree, const Symbols& symbols, Function& out, uint32_t& shared_at)
    : tree_(tree),
      symbols_(symbols),
      out_(out),
      shared_at_(shared_at),
      slot_(tree.variables.size(), 0),
      placed_(tree.variables.size(), false) {
    entry_.line = tree.line;
    entry_.text = tree.name;
    here_ = &entry_;
}

void Decoder::run() {
    carry_ = reserve(16 * kLanes);  // slot 0: also what an operand that is not there refers to
    if (grows_stack()) {            // its first operation sets the top, once the size of the frame is known
        Op first;
        first.fn = find_handler("nothing");
        out_.code.push_back(first);
    }
    for (int p : tree_.params) is_param_.insert(p);
    take_parameters();
    size_t rested = 0;
    std::set<uint32_t> leaders;
    for (const Block& block : tree_.blocks)
        for (auto& [name, at] : block.labels) leaders.insert(at);
    for (uint32_t n = 0; n <= tree_.body.size(); ++n) {
        if (leaders.contains(n)) {
            set_mode(0);
            code_at_[n] = static_cast<uint32_t>(out_.code.size());
        }
        if (n == tree_.body.size()) break;
        here_ = &tree_.body[n];
        read_ = 0;
        check(*here_, tree_);
        const size_t first = out_.code.size();
        instruction(*here_);
        everything_was_read();
        mark_whole(first);
        if (out_.code.size() - rested >= kLongestStretch) {  // a place to pause, where the text has none
            set_mode(0);
            Op rest;
            rest.control = Control::yield, rest.line = here_->line;
            out_.code.push_back(rest);
            rested = out_.code.size();
        }
    }
    set_mode(0);
    if (stack_top_) {
        Op& first = out_.code.front();
        first.fn = find_handler("local.64");
        first.dst = stack_top_;
        first.imm = stack_begin_;
    }
    here_ = &entry_;
    give_results();
    Op end;
    end.control = out_.kernel ? Control::exit : Control::ret;
    out_.code.push_back(end);
    for (auto& [op, at] : fixups_) out_.code[op].aux = code_at_.at(at);
    for (std::vector<uint32_t>& table : table_fixups_) {
        for (uint32_t& at : table) at = code_at_.at(at);
        out_.tables.push_back(std::move(table));
    }
    stretches();
    out_.register_bytes = registers_;
    size_t size = out_.constants.size();
    out_.constant_store = std::make_unique<char[]>(size + 128);
    auto base = (reinterpret_cast<uintptr_t>(out_.constant_store.get()) + 63) / 64 * 64;
    if (size) std::memcpy(reinterpret_cast<void*>(base), out_.constants.data(), size);
    out_.constant_base = reinterpret_cast<const char*>(base) - 1;
    out_.constants = {};
}

// The operation of those from `first` on that stands for the instruction: the call, whose results are loaded
// behind it, else the last.  A hint has none.
void Decoder::mark_whole(size_t first) {
    if (first == out_.code.size()) return;
    size_t n = out_.code.size() - 1;
    for (size_t at = first; at < out_.code.size(); ++at)
        if (out_.code[at].control == Control::call) n = at;
    out_.code[n].whole = true;
}

void Decoder::stretches() {
    uint16_t straight = 0;
    for (size_t left = out_.code.size(); left > 0; --left) {
        const size_t n = left - 1;
        Op& op = out_.code[n];
        const bool plain = op.control == Control::none && op.guard == kNoGuard;
        straight = !plain ? 0 : straight == UINT16_MAX ? 1 : straight + 1;
        op.straight = straight;
        if (straight > 1 && op.fn == out_.code[n + 1].fn && does_several(op.fn)) {
            const Op& next = out_.code[n + 1];
            op.width = static_cast<uint16_t>(std::min(next.width + 1, 255));
        }
    }
    std::set<size_t> targets;
    for (const auto& [instruction, at] : code_at_) targets.insert(at);
    for (size_t n = 0, first = 0; n < out_.code.size(); first = ++n) {
        while (out_.code[n].width > 1 && !targets.contains(n + 1)) ++n;
        row(&out_.code[first], n + 1 - first);
    }
    // Op::pattern is the size of a shared access until here, and the number of its pattern from here on.
    struct Seen {
        uint8_t number, size;
    };
    std::map<uint32_t, Seen> seen;  // by the slot of the address
    uint8_t count = 0;
    for (Op& op : out_.code) {
        const uint8_t size = op.pattern;
        op.pattern = 0;
        if (!op.straight) {
            seen.clear(), count = 0;
            continue;
        }
        if (size == kClobbers) {
            seen.clear();
            continue;
        }
        if (size) {
            auto known = seen.find(op.a);
            if (known != seen.end() && known->second.size == size) {
                op.pattern = known->second.number, op.same_pattern = true;
            } else if (count < kPatterns) {
                op.pattern = ++count;
                seen[op.a] = {count, size};
            }
        }
        if (!size || op.access == AccessKind::read) seen.erase(op.dst);
    }
}

bool Decoder::grows_stack() const {
    for (const Instruction& in : tree_.body)
        if (in.parts[0] == "alloca" || in.parts[0] == "stacksave") return true;
    return false;
}

// An operand that no decoder looked at has no meaning here, and so is an error.
void Decoder::everything_was_read() const {
    for (size_t n = 0; n < here_->operands.size(); ++n)
        if (n >= 64 || !(read_ >> n & 1)) wrong("operand " + std::to_string(n + 1) + " is one too many");
}

void Decoder::instruction(const Instruction& in) {
    const std::string& base = in.parts[0];
    static const std::set<std::string> controls = {"bra", "brx",     "ret",  "exit",  "call",
                                                   "bar", "barrier", "trap", "brkpt", "nanosleep"};
    static const std::set<std::string> warps = {"shfl", "vote", "match", "redux", "activemask", "elect"};
    if (controls.count(base) || warps.count(base)) {
        set_mode(0);
        if (warps.count(base)) return warp(base);
        return control(base);
    }
    if (base == "ld" || base == "ldu") return load_store(true);
    if (base == "st") return load_store(false);
    if (base == "atom" || base == "red") return atomic();
    if (base == "mov") return move();
    if (base == "cvta" || base == "isspacep") return address_conversion();
    if (base == "membar" || base == "fence") {
        read_ = ~0ull;
        return emit("touch", fresh(false));
    }
    if (base == "mma" || base == "wmma" || base == "ldmatrix" || base == "stmatrix" || base == "movmatrix")
        return matrix();
    if (base == "wgmma") return warpgroup();
    if (base == "tensormap") return tensor_map();
    if (base == "multimem" || base == "tcgen05" || base == "clusterlaunchcontrol" || base == "istypep")
        lacking();
    if (base == "cp") return copy_async();
    if (base == "mbarrier") return mbarrier();
    if (base == "mapa" || base == "getctarank") return address_conversion();
    if (base == "stacksave" || base == "stackrestore" || base == "alloca") return stack();
    if (base == "createpolicy") {
        read_ = ~0ull;
        Op op = fresh();
        op.a = constant(8, 0), op.dst = destination(operand(0), 8);
        return emit("mov.b64", op);
    }
    if (base.starts_with("v") && base != "vote") return video();
    if (base == "griddepcontrol" || base == "prefetch" || base == "prefetchu" || base == "pmevent" ||
        base == "discard" || base == "applypriority" || base == "setmaxnreg") {
        read_ = ~0ull;  // hints, of which nothing follows
        if (base == "setmaxnreg") {
            const int64_t count = operand(0).value;
            if (count < 24 || count > 256 || count % 8)
                wrong("it takes 24 to 256 registers, a multiple of 8");
        }
        if (base == "prefetch" && !has("tensormap")) {  // of a place that is there
            Op unused;
            same_space(operand(0), false);
            space_of(unused, operand(0));
        }
        return;
    }
    if (base == "tex" || base == "tld4") return texture();
    if (base == "txq" || base == "suq") return texture_query();
    if (base == "suld" || base == "sust" || base == "sured") return surface();
    if (base == "setp") return set_predicate(false);
    if (base == "set") return set_predicate(true);
    if (base == "cvt") return convert();
    arithmetic();
}

void lay_out_parameters(const FunctionTree& tree, Function& out) {
    out.name = tree.name;
    out.kernel = tree.kernel;
    uint32_t at = 0;
    auto lay = [&](const std::vector<int>& list, std::vector<Slot>& to) {
        for (int p : list) {
            const Variable& v = tree.variables[static_cast<size_t>(p)];
            at = round_up(at, std::max(v.align, 1u));
            const uint64_t most = tree.kernel ? kMostParameters : kMostLocal;
            if (v.bytes() > most || at + v.bytes() > most)
                throw SyntaxError{Status::invalid_ptx, v.line,
                                  "the parameters of '" + tree.name + "' are too large"};
            uint32_t size = static_cast<uint32_t>(v.bytes());
            to.push_back({at, size});
            at += size;
        }
    };
    if (!tree.kernel) lay(tree.rets, out.rets), at = round_up(at, 16);
    std::vector<Slot> params;
    lay(tree.params, params);
    if (tree.kernel) {
        for (Slot s : params) out.info.params.push_back({s.offset, s.size});
        out.info.param_bytes = at;
        out.info.name = tree.name;
        out.info.cluster = {tree.cluster[0], tree.cluster[1], tree.cluster[2]};
        out.info.max_cluster = tree.max_cluster;
        out.info.explicit_cluster = tree.explicit_cluster;
        out.max_registers = tree.max_registers;
        out.info.max_threads = tree.max_threads ? std::min(tree.max_threads, 1024u) : 1024;
    } else {
        out.params = std::move(params);
        out.local_bytes = at;
    }
}

void decode(const FunctionTree& tree, const Symbols& symbols, Function& out, uint32_t& shared_at) {
    Decoder(tree, symbols, out, shared_at).run();
}

}  // namespace gpukernel::simgpu::ptx
