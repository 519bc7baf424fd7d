// Several PTX texts to one image: symbols of all texts, module variables in device memory, shared memory per
// kernel.
#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <unordered_map>

#include "common/checked.h"
#include "simgpu/compiler/compiler.h"
#include "simgpu/exec/launch.h"
#include "simgpu/ptx/decode.h"
#include "simgpu/ptx/outline.h"

namespace gpukernel::simgpu {
namespace {

using namespace ptx;

uint32_t round_up(uint32_t n, uint32_t to) { return (n + to - 1) / to * to; }

class LinkedModule final : public Module {
  public:
    LinkedModule(DeviceMemory& memory, int multiprocessors)
        : memory_(memory), multiprocessors_(multiprocessors) {}
    ~LinkedModule() override {
        compiler::forget(program_);
        for (uint64_t address : owned_) memory_.free(address);
    }

    const std::vector<std::string>& kernels() const override { return kernels_; }
    const KernelInfo* kernel(std::string_view name) const override {
        const Function* f = find(name);
        return f ? &f->info : nullptr;
    }
    size_t unread(std::string_view name) const override {
        std::lock_guard lock(reading_);
        const auto it = later_.find(find(name));
        return it == later_.end() ? 0 : it->second.text.text.size();
    }
    Result prepare(std::string_view name, std::string& log) override;
    const std::vector<GlobalInfo>& globals() const override { return globals_; }
    const std::vector<GlobalInfo>& texture_references() const override { return textures_; }
    const std::vector<GlobalInfo>& surface_references() const override { return surfaces_; }
    Result run(std::string_view name, const Launch& launch) override {
        const Function* f = find(name);
        if (!f) return {Status::not_found, "no kernel named '" + std::string(name) + "'"};
        std::string log;
        if (Result result = prepare(name, log); !result) return result;
        return run_kernel(program_, *f, launch, memory_, multiprocessors_);
    }

    // Of kernels whose bodies are empty in their unit `later` has the text, by the line of .entry.
    using Later = std::map<uint32_t, KernelText>;
    void link(std::vector<Unit> units, const std::vector<Later>& later, std::string& log);
    void keep(std::string text) { kept_.push_back(std::move(text)); }
    std::string_view last_kept() const { return kept_.back(); }

  private:
    using Private = std::map<std::string, const Variable*>;  // shared variables that no other function names
    struct Unread {
        KernelText text;
        const Unit* unit;
        Private shared;
    };
    DeviceMemory& memory_;
    int multiprocessors_;
    Program program_;
    std::vector<std::string> kernels_;
    std::vector<GlobalInfo> globals_, textures_, surfaces_;
    std::vector<uint64_t> owned_;
    std::vector<std::pair<const Variable*, uint64_t>> placed_;  // only while it is linked

    uint32_t constant_bytes_ = 0;
    // What decoding needs once more when a kernel is first used.
    std::deque<std::string> kept_;  // texts
    std::vector<Unit> units_;
    Symbols symbols_;
    uint32_t common_ = 0;  // bytes of shared memory that several functions have
    std::unordered_map<std::string_view, Function*> by_name_;
    mutable std::mutex reading_;
    std::unordered_map<const Function*, Unread> later_;
    std::unordered_map<const Function*, Result> refused_;

    Function* find(std::string_view name) const {
        const auto it = by_name_.find(name);
        return it == by_name_.end() ? nullptr : it->second;
    }
    void note_sources(const Unit& unit, const FunctionTree& tree, Function& out) const;
    uint32_t place_shared(const Private& own, uint32_t at);
    void decode_function(const FunctionTree& tree, uint32_t own_shared, Function& out, std::string& log);
    void stack(Function& kernel, std::map<const Function*, uint32_t>& known);
    void place_globals(std::vector<Unit>& units, Symbols& symbols);
    void fill(const Variable& v, uint64_t address, const Symbols& symbols);
};

void LinkedModule::place_globals(std::vector<Unit>& units, Symbols& symbols) {
    for (Unit& unit : units)
        for (Variable& v : unit.variables) {
            if (v.where != Where::global && v.where != Where::constant) continue;
            if (v.external || symbols.count(v.name)) continue;
            if (v.count == 0) continue;
            if (v.where == Where::constant) {
                if (v.bytes() > kMostConstant - constant_bytes_)
                    throw SyntaxError{Status::invalid_ptx, v.line,
                                      "too much constant memory: with '" + v.name +
                                          "' the module has more than the " + std::to_string(kMostConstant) +
                                          " bytes of a device"};
                constant_bytes_ += static_cast<uint32_t>(v.bytes());
            }
            auto address = memory_.allocate(v.bytes());
            if (!address)
                throw SyntaxError{Status::out_of_memory, v.line,
                                  "no device memory for variable '" + v.name + "'"};
            owned_.push_back(*address);
            placed_.emplace_back(&v, *address);
            auto& list = v.type == Type::texref ? textures_ : v.type == Type::surfref ? surfaces_ : globals_;
            if (!v.own) list.push_back({v.name, *address, v.bytes(), v.managed});
            symbols[v.name] = {Symbol::global, *address, size_of(v.type), nullptr, v.where};
        }
}

// A constant as an element of `v` holds it: a decimal or hexadecimal number of either precision.
uint64_t constant_bits(const Variable& v, const Initialiser& i) {
    const bool floating = v.type == Type::f32 || v.type == Type::f64, integer = i.kind == Tok::integer;
    const bool raw = v.type == Type::b8 || v.type == Type::b16 || v.type == Type::b32 || v.type == Type::b64;
    if (raw && !integer) {  // as wide as the number is written, or as wide as the element is
        if (v.type == Type::b32 && i.kind == Tok::floating64)
            return std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(i.bits)));
        return i.bits;
    }
    if (floating == integer)
        throw SyntaxError{
            Status::invalid_ptx, v.line,
            "an initial value of '" + v.name + "' is not of its type, ." + std::string(name_of(v.type))};
    if (v.type == Type::f32 && i.kind == Tok::floating64)
        return std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(i.bits)));
    if (v.type == Type::f64 && i.kind == Tok::floating32)
        return std::bit_cast<uint64_t>(
            static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(i.bits))));
    return i.bits;
}

void LinkedModule::fill(const Variable& v, uint64_t address, const Symbols& symbols) {
    uint32_t size = size_of(v.type);
    char* to = reinterpret_cast<char*>(address);  // zeroes so far
    for (const Initialiser& i : v.init) {
        uint64_t bits = i.bits;
        if (i.kind == Tok::ident) {
            auto it = symbols.find(i.name);
            if (it == symbols.end())
                throw SyntaxError{Status::not_found, v.line, "unresolved symbol '" + i.name + "'"};
            uint64_t base =
                it->second.kind == Symbol::function ? kFunctionWindow | it->second.value : it->second.value;
            bits = wrapping_sum(bits, base);
            if (i.mask && size != 1)
                throw SyntaxError{Status::invalid_ptx, v.line,
                                  "a byte of an address initialises bytes, and '" + v.name + "' has others"};
            if (i.mask) bits = (bits & i.mask) >> std::countr_zero(i.mask);
        } else {
            bits = constant_bits(v, i);
        }
        std::memcpy(to + i.element * size, &bits, std::min<size_t>(size, sizeof bits));
    }
}

// Bytes of stack per thread of a kernel: its deepest chain of calls; recursion and indirect calls get a fixed
// stack.  `known` keeps what functions need, or those that call each other twice would be walked for ever.
void LinkedModule::stack(Function& kernel, std::map<const Function*, uint32_t>& known) {
    constexpr uint32_t kDeep = 64 << 10;
    auto depth = [&](auto& self, const Function& f, int level) -> uint32_t {
        if (level > 24) return kDeep;
        if (auto it = known.find(&f); it != known.end()) return it->second;
        uint32_t most = 0;
        for (const CallSite& c : f.calls) {
            if (c.builtin != Builtin::none) continue;
            if (c.callee < 0) return known[&f] = kDeep;
            most = std::max(most, self(self, *program_.functions[static_cast<size_t>(c.callee)], level + 1));
            if (most >= kDeep) return known[&f] = kDeep;
        }
        return known[&f] = round_up(f.local_bytes, 16) + 16 + most;
    };
    uint32_t need = depth(depth, kernel, 0);
    kernel.stack_bytes = need >= kDeep ? kDeep + round_up(kernel.local_bytes, 16) : need;
    kernel.info.local_bytes = kernel.local_bytes;
    // An estimate, but never more than lets the kernel's largest block run, as a compiler sees to it.
    const uint32_t most = 65536 / ((kernel.info.max_threads + 31) / 32 * 32);
    kernel.info.registers = std::clamp(kernel.register_bytes / 128, 8u, std::min(most, 255u));
    if (kernel.max_registers) kernel.info.registers = std::min(kernel.info.registers, kernel.max_registers);
    kernel.info.static_shared_bytes = kernel.shared_bytes;
    kernel.info.constant_bytes = constant_bytes_;
}

// What NVRTC brings along, texture functions among it, is no place that a person knows: the place that it was
// inlined at is, which its first .loc names and those inside it do not.
void LinkedModule::note_sources(const Unit& unit, const FunctionTree& tree, Function& out) const {
    auto brought = [](const std::string& file) {
        return file.find("__nv_nvrtc_builtin") != std::string::npos;
    };
    for (const auto& place : tree.locations) {
        auto file = unit.files.find(place.file), caller = unit.files.find(place.caller_file);
        if (file == unit.files.end()) continue;
        const bool inlined = caller != unit.files.end() && brought(file->second);
        if (inlined && brought(caller->second)) continue;
        out.sources.push_back(
            {place.ptx_line, inlined ? place.caller_line : place.line, (inlined ? caller : file)->second});
    }
}

// Places a kernel's own shared variables behind the common ones, and returns where they end.
uint32_t LinkedModule::place_shared(const Private& own, uint32_t at) {
    for (const auto& [name, variable] : own) {
        at = round_up(at, std::max(variable->align, 1u));
        symbols_[name] = {Symbol::shared, at, size_of(variable->type)};  // nobody else looks for it
        at += static_cast<uint32_t>(variable->bytes());
        if (at > kMostShared)
            throw SyntaxError{Status::invalid_ptx, variable->line, "too much shared memory"};
    }
    return at;
}

// Of a kernel `own_shared` is where its own shared variables begin that stand in its body.
void LinkedModule::decode_function(const FunctionTree& tree, uint32_t own_shared, Function& out,
                                   std::string& log) {
    try {
        decode(tree, symbols_, out, out.kernel ? own_shared : common_);
    } catch (SyntaxError& e) {
        if (e.status != Status::unsupported) throw;
        out.lacking = "'" + out.name + "', line " + std::to_string(e.line) + ": " + e.message;
        log += out.lacking + "\n";
        out.code.clear();
    }
    out.shared_bytes = out.kernel ? own_shared : 0;
}

Result LinkedModule::prepare(std::string_view name, std::string& log) {
    std::lock_guard lock(reading_);
    Function* const out = find(name);
    if (const auto refused = refused_.find(out); refused != refused_.end()) return refused->second;
    const auto it = later_.find(out);
    if (it == later_.end()) return {};
    const Unread unread = std::move(it->second);
    later_.erase(it);
    try {
        const FunctionTree tree = parse_kernel(*unread.unit, unread.text);
        note_sources(*unread.unit, tree, *out);
        decode_function(tree, place_shared(unread.shared, common_), *out, log);
        std::map<const Function*, uint32_t> known;
        stack(*out, known);
        return {};
    } catch (const SyntaxError& e) {
        std::string message = "line " + std::to_string(e.line) + ": " + e.message;
        log += message + "\n";
        return refused_[out] = {e.status, std::move(message)};
    }
}

void LinkedModule::link(std::vector<Unit> given, const std::vector<Later>& later, std::string& log) {
    units_ = std::move(given);
    std::vector<Unit>& units = units_;
    Symbols& symbols = symbols_;
    place_globals(units, symbols);
    std::vector<const FunctionTree*> trees;
    for (Unit& unit : units)
        for (FunctionTree& f : unit.functions) {
            if (!f.defined) continue;
            size_t at = trees.size();
            if (auto it = symbols.find(f.name); it != symbols.end()) {
                const bool function = it->second.kind == Symbol::function;
                if (function && f.weak) continue;
                if (!function || !trees[it->second.value]->weak)
                    throw SyntaxError{Status::invalid_ptx, f.line, "'" + f.name + "' is defined twice"};
                at = it->second.value;  // of a weak one, in whose place this one stands
            }
            f.text = static_cast<size_t>(&unit - units.data());
            trees.resize(std::max(trees.size(), at + 1));
            program_.functions.resize(trees.size());
            symbols[f.name] = {Symbol::function, at, 1, &f};
            trees[at] = &f;
            program_.functions[at] = std::make_unique<Function>();
            Function& out = *program_.functions[at];
            lay_out_parameters(f, out);
            note_sources(unit, f, out);
        }
    for (const Unit& unit : units)
        for (const Alias& alias : unit.aliases) {
            auto of = symbols.find(alias.of);
            if (of == symbols.end() || of->second.kind != Symbol::function)
                throw SyntaxError{Status::not_found, alias.line, "no function named '" + alias.of + "'"};
            if (!symbols.try_emplace(alias.name, of->second).second)
                throw SyntaxError{Status::invalid_ptx, alias.line, "'" + alias.name + "' is defined twice"};
        }
    // Shared variables of module scope: those that only one kernel names lie in that kernel's part, which
    // begins behind what several functions share.
    std::map<std::string, std::set<size_t>, std::less<>> users;
    auto note = [&](auto& self, const Operand& o, size_t f) -> void {
        if (o.kind == Operand::symbol || o.kind == Operand::element) users[o.name].insert(f);
        for (const Operand& p : o.parts) self(self, p, f);
    };
    for (size_t f = 0; f < trees.size(); ++f)
        for (const Instruction& in : trees[f]->body)
            for (const auto* list : {&in.operands, &in.args, &in.rets})
                for (const Operand& o : *list) note(note, o, f);
    auto text_of = [&](const FunctionTree& tree) -> const KernelText* {
        const auto it = later[tree.text].find(tree.line);
        return tree.kernel && it != later[tree.text].end() ? &it->second : nullptr;
    };
    std::set<std::string_view> shared_names;
    for (const Unit& unit : units)
        for (const Variable& v : unit.variables)
            if (v.where == Where::shared) shared_names.insert(v.name);
    for (size_t f = 0; f < trees.size() && !shared_names.empty(); ++f)
        if (const KernelText* text = text_of(*trees[f]))
            names_in(text->text, [&](std::string_view name) {
                if (shared_names.contains(name)) users[std::string(name)].insert(f);
            });
    uint32_t& common = common_;
    uint32_t dynamic_alignment = 16;
    std::map<size_t, Private> private_to;
    // One that is .extern and has a size is as it says, unless another text defines it.
    std::set<std::string, std::less<>> defined, sized;
    for (const Unit& unit : units)
        for (const Variable& v : unit.variables)
            if (v.where == Where::shared && !v.external) defined.insert(v.name);
    for (Unit& unit : units)
        for (Variable& v : unit.variables) {
            if (v.where != Where::shared) continue;
            if (auto it = symbols.find(v.name); it != symbols.end() && (it->second.kind == Symbol::global ||
                                                                        it->second.kind == Symbol::function))
                throw SyntaxError{Status::invalid_ptx, v.line, "'" + v.name + "' is defined twice"};
            if (v.bytes() > kMostShared)
                throw SyntaxError{Status::invalid_ptx, v.line,
                                  "'" + v.name + "' is too large for shared memory"};
            if (v.external && v.count && (defined.contains(v.name) || !sized.insert(v.name).second)) continue;
            if (v.count == 0) {  // as large as the launch says
                symbols.try_emplace(v.name, Symbol{Symbol::dynamic_shared, 0, size_of(v.type)});
                dynamic_alignment = std::max(dynamic_alignment, v.align);
                continue;
            }
            auto& by = users[v.name];
            if (by.empty()) continue;
            if (by.size() == 1 && trees[*by.begin()]->kernel) {
                private_to[*by.begin()][v.name] = &v;
                continue;
            }
            common = round_up(common, std::max(v.align, 1u));
            symbols[v.name] = {Symbol::shared, common, size_of(v.type)};
            common += static_cast<uint32_t>(v.bytes());
            if (common > kMostShared)
                throw SyntaxError{Status::invalid_ptx, v.line, "too much shared memory"};
        }
    for (auto [variable, address] : placed_) fill(*variable, address, symbols);
    placed_.clear();
    // Device functions first: their own shared variables join the common ones, before any kernel's.
    std::map<const Function*, uint32_t> known;
    for (bool kernels : {false, true})
        for (size_t f = 0; f < trees.size(); ++f) {
            if (trees[f]->kernel != kernels) continue;
            stop_in_vain(trees[f]->line);
            Function& out = *program_.functions[f];
            out.dynamic_alignment = dynamic_alignment;
            if (kernels) {
                kernels_.push_back(out.name);
                by_name_[out.name] = &out;
            }
            if (const KernelText* text = text_of(*trees[f])) {
                later_[&out] = {*text, &units[trees[f]->text], std::move(private_to[f])};
                continue;
            }
            decode_function(*trees[f], place_shared(private_to[f], common), out, log);
            if (kernels) stack(out, known);
        }
    if (later_.empty()) units_.clear(), symbols_.clear();
}

// PTX ISA, ".target": of sm_90a this compute capability's devices alone, of sm_100f those of its family.
bool runs_on(const Unit& unit, int device_sm) {
    if (unit.target_kind == 'a') return unit.target_sm == device_sm;
    if (unit.target_kind == 'f' && unit.target_sm / 10 != device_sm / 10) return false;
    return unit.target_sm <= device_sm;
}

}  // namespace

Result load_module(const std::vector<std::string_view>& ptx_texts, DeviceMemory& memory, int device_sm,
                   int multiprocessors, std::unique_ptr<Module>& module, std::string& log,
                   const Charge& charge) {
    try {
        auto image = std::make_unique<LinkedModule>(memory, multiprocessors);
        std::vector<Unit> units;
        std::vector<Outline> outlines;
        uint64_t now = 0, kept = 0;
        for (std::string_view text : ptx_texts) {
            outlines.push_back({});
            if (text.size() >= kLargeText) {
                image->keep(std::string(text));
                outlines.back() = outline(image->last_kept());
                kept += text.size();
            }
            now += text.size() < kLargeText ? text.size() : outlines.back().skeleton.size();
        }
        if (charge && !charge(now, kept))
            return {Status::out_of_memory, "the host has no memory for a module of this size"};
        std::vector<LinkedModule::Later> later(ptx_texts.size());
        for (size_t i = 0; i < ptx_texts.size(); ++i) {
            for (const KernelText& kernel : outlines[i].kernels) later[i][kernel.line] = kernel;
            units.push_back(parse(ptx_texts[i].size() < kLargeText ? ptx_texts[i] : outlines[i].skeleton));
            const Unit& unit = units.back();
            if (!runs_on(unit, device_sm))
                throw SyntaxError{Status::invalid_ptx, 1,
                                  "the PTX is for sm_" + std::to_string(unit.target_sm) +
                                      (unit.target_kind ? std::string{unit.target_kind} + " alone" : "") +
                                      ", this device is sm_" + std::to_string(device_sm)};
        }
        image->link(std::move(units), later, log);
        module = std::move(image);
        return {};
    } catch (const SyntaxError& e) {
        std::string message = "line " + std::to_string(e.line) + ": " + e.message;
        log += message + "\n";
        return {e.status, message};
    }
}

}  // namespace gpukernel::simgpu
