// Which kernels are compiled, and the memory that their code lies in.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "simgpu/compiler/compiler.h"
#include "simgpu/compiler/known.h"
#include "simgpu/compiler/machine_code.h"
#include "simgpu/exec/processor.h"
#include "simgpu/profile/kernel_rows.h"

namespace gpukernel::simgpu::compiler {
namespace {

// Bytes of code and tables of all kernels of a process.
constexpr size_t kMostOfAll = 64 << 20;
std::atomic<size_t> room_taken{0};

std::string_view wanted_log() {
    const char* text = std::getenv("GPUKERNEL_SIMGPU_TIER_LOG");
    return text ? text : "";
}

// What the compiler takes, once, and of each kernel which of it occurs how often: tests of drawn kernels
// count by it what their drawing reaches.
void tell_operations(const Function& function, const MachineCode& image) {
    static std::atomic<bool> told{false};
    if (!told.exchange(true)) {
        std::string known;
        for (const std::string& key : known_operations()) known += " " + key;
        std::fprintf(stderr, "gpukernel: the compiler knows:%s\n", known.c_str());
    }
    std::map<std::string, int> counts;
    for (size_t n = 0; n < function.code.size(); ++n) {
        const std::string& key = image.flow.signatures[n].key;
        const char* control = control_name(function.code[n].control);
        if (*control) ++counts[control];
        if (!key.empty()) ++counts[key + (image.handlers.contains(key) ? "=handler" : "=code")];
    }
    std::string all;
    for (const auto& [key, count] : counts) all += " " + key + ":" + std::to_string(count);
    std::fprintf(stderr, "gpukernel: %s: operations:%s\n", function.name.c_str(), all.c_str());
}

void tell(const Function& function, const CompiledKernel& kernel, std::chrono::microseconds took) {
    if (wanted_log() != "1" && wanted_log() != "operations") return;
    if (!kernel.refused().empty()) {
        std::fprintf(stderr, "gpukernel: %s: interpreted: %s\n", function.name.c_str(),
                     kernel.refused().c_str());
        return;
    }
    const MachineCode& image = kernel.image();
    std::string names;
    for (const std::string& name : image.handlers) names += (names.empty() ? " (" : ", ") + name;
    if (!names.empty()) names += ")";
    if (image.abreast > 1) names += ", " + std::to_string(image.abreast) + " warps abreast in a loop";
    std::fprintf(stderr,
                 "gpukernel: %s: compiled: %u operations, %u more by handlers%s, %zu bytes, %lld us\n",
                 function.name.c_str(), image.native, image.called, names.c_str(), image.code_size,
                 static_cast<long long>(took.count()));
    if (wanted_log() == "operations") tell_operations(function, image);
}

}  // namespace

Tier wanted_tier() {
    const char* text = std::getenv("GPUKERNEL_SIMGPU_TIER");
    const std::string_view name = text && *text ? text : "auto";
    if (name == "compiled") return Tier::compiled;
    if (name == "interpreter") return Tier::interpreter;
    static std::atomic<bool> told{false};
    if (name != "auto" && !told.exchange(true))
        std::fprintf(stderr,
                     "gpukernel: GPUKERNEL_SIMGPU_TIER is auto, compiled or interpreter, and not '%s'; "
                     "kernels run as with auto\n",
                     text);
    return Tier::automatic;
}

namespace {

// Of x86-64, that whose vectors the code uses: the newest, unless a test wants an older one.
int vector_level() {
    const char* text = std::getenv("GPUKERNEL_SIMGPU_VECTORS");
    const std::string_view name = text ? text : "";
    static std::atomic<bool> told{false};
    if (!name.empty() && name != "avx2" && name != "avx512" && !told.exchange(true))
        std::fprintf(stderr, "gpukernel: GPUKERNEL_SIMGPU_VECTORS is avx2 or avx512, and not '%s'\n", text);
    return name == "avx2" ? std::min(wanted_level(), 3) : wanted_level();
}

}  // namespace

CompiledKernel::CompiledKernel(const Function& function, bool rows) { make(function, rows); }

void CompiledKernel::make(const Function& function, bool rows) {
#if !defined __x86_64__
    return refuse("there is a compiler for x86-64 only");
#endif
    const int level = vector_level();
    if (processor_level() < 3)
        return refuse("this processor has neither AVX-512 nor AVX2 with FMA, BMI2 and F16C");
    if (level < 3) return refuse("GPUKERNEL_SIMGPU_LEVEL forbids AVX2");
    image_ = std::make_unique<MachineCode>();
    image_->narrow = level < 4;
    image_->flow = analyse(function, rows);
    if (!image_->flow.refused.empty()) return refuse(image_->flow.refused);
    // A part of the tables is there already, and may be too large by itself.
    if (image_->table_bytes() > kMostOfOne) return refuse(too_large());
    generate(*image_);
    if (image_->unknown) return refuse("AVX2 has no code for one of its operations");
    const size_t wanted = (image_->code.size() + 4095) / 4096 * 4096;
    const size_t room = wanted + image_->table_bytes();
    if (room > kMostOfOne) return refuse(too_large());
    if (!take_room(room)) return refuse("the code of this process's kernels has no more room");
    void* at = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return refuse("the host has no memory for code");
    code_ = static_cast<char*>(at), bytes_ = wanted;
    std::memcpy(code_, image_->code.data(), image_->code.size());
    image_->code_size = image_->code.size();
    image_->code = {};
    entries_ = image_->entries.data(), enter_ = image_->enter;
    if (mprotect(at, wanted, PROT_READ | PROT_EXEC) != 0)
        refuse("the host forbids code that was written at run time");
}

bool CompiledKernel::take_room(size_t bytes) {
    if (room_taken.fetch_add(bytes) + bytes > kMostOfAll) {
        room_taken -= bytes;
        return false;
    }
    room_ = bytes;
    return true;
}

// Nothing but the sentence stays.
void CompiledKernel::refuse(std::string why) {
    refused_ = std::move(why);
    image_.reset();
    if (code_) munmap(code_, bytes_);
    code_ = nullptr;
    room_taken -= std::exchange(room_, 0);
}

CompiledKernel::~CompiledKernel() {
    if (code_) munmap(code_, bytes_);
    room_taken -= room_;
}

size_t MachineCode::table_bytes() const {
    size_t bytes = literals.capacity() * sizeof(uint64_t) + entries.capacity() * sizeof(size_t);
    for (const auto& lines : entry_lines) bytes += sizeof lines + lines.capacity() * sizeof(uint32_t);
    for (const std::string& name : handlers) bytes += kNode + name.capacity();
    for (const Signature& s : flow.signatures)
        bytes += sizeof s + s.key.capacity() + (s.reads.capacity() + s.writes.capacity()) * sizeof(Access);
    for (const CodeBlock& b : flow.blocks)
        bytes += sizeof b + b.next.capacity() * sizeof(uint32_t) +
                 (b.live.capacity() + b.kept.capacity()) * sizeof(uint64_t) + b.waited_for.size() * kNode;
    for (const Value& v : flow.values) bytes += sizeof v + v.vectors.capacity();
    bytes += flow.settled.capacity() * sizeof(uint32_t) + wanted.capacity() * sizeof(Wanted);
    return bytes + flow.block_of.capacity() * sizeof(uint32_t) + flow.by_slot.size() * kNode;
}

void CompiledKernel::settle(Context& context, Warp& warp) const {
    call(context, warp, code_ + image_->settle);
}
void CompiledKernel::begin_warps(Context& context) const { context.turn = code_ + image_->warps; }
uint32_t CompiledKernel::enter_warps(Context& context, Warp& first) const {
    return call(context, first, context.turn);
}
uint64_t bytes_of_lines(const CompiledKernel* kernel) {
    return kernel ? kernel->image().layout.bytes_of_lines : 0;
}

namespace {

// A launch that has run for so long is one of a warm kernel.
constexpr auto kWarm = std::chrono::milliseconds(2);

Kernels& kernels_of(const Function& function) {
    static std::mutex making;
    std::lock_guard lock(making);
    if (!function.compiled) function.compiled = std::make_shared<Kernels>();
    return *function.compiled;
}

}  // namespace

void compile(const Function& function, bool rows) {
    Kernels& kernels = kernels_of(function);
    std::unique_ptr<CompiledKernel> made;
    {
        std::lock_guard lock(kernels.mutex);
        if (kernels.of[rows]) return;
    }
    const auto begin = std::chrono::steady_clock::now();
    made = std::make_unique<CompiledKernel>(function, rows);
    const auto took = std::chrono::steady_clock::now() - begin;
    std::lock_guard lock(kernels.mutex);
    if (kernels.of[rows]) return;
    profile::KernelRow& row = profile::row_of(function);
    row.compile_nanoseconds += static_cast<uint64_t>(std::chrono::nanoseconds(took).count());
    row.say(made->refused());
    tell(function, *made, std::chrono::duration_cast<std::chrono::microseconds>(took));
    if (made->refused().empty()) kernels.ready[rows] = made.get();
    kernels.of[rows] = std::move(made);
}

void not_compiled(const Function& function, bool rows) {
    Kernels& kernels = kernels_of(function);
    std::lock_guard lock(kernels.mutex);
    kernels.asked[rows] = false;
    profile::row_of(function).say("the host had no memory to compile it");
}

Awaited::Awaited(const Function& function, bool rows)
    : function_(function), kernels_(kernels_of(function)), rows_(rows) {}

const CompiledKernel* Awaited::look() {
    if (const CompiledKernel* code = kernels_.ready[rows_].load(std::memory_order_acquire)) return code;
    if (asked_.load(std::memory_order_relaxed) || std::chrono::steady_clock::now() - begun_ < kWarm)
        return nullptr;
    if (!asked_.exchange(true) && !compile_later(function_, rows_)) asked_ = false;
    return nullptr;
}

Code code_for(const Program& program, const Function& function, const Launch& launch) {
    profile::KernelRow& row = profile::row_of(function);
    if (program.tier == Tier::interpreter) {
        if (!row.launches) row.say("GPUKERNEL_SIMGPU_TIER of the GPU server is interpreter");
        return {};
    }
    Kernels& kernels = kernels_of(function);
    const bool rows = launch.block.x % kLanes == 0 || (launch.block.y == 1 && launch.block.z == 1);
    if (program.tier == Tier::compiled) compile(function, rows);
    std::lock_guard lock(kernels.mutex);
    const bool again = ++kernels.launches > 1;
    if (kernels.of[rows]) return {kernels.ready[rows], nullptr};
    if (again && !kernels.asked[rows]) kernels.asked[rows] = compile_later(function, rows);
    row.say(again ? "it is being compiled, for it was launched again"
                  : "it is compiled when it is launched again, or runs for 2 ms");
    return {nullptr, std::make_unique<Awaited>(function, rows)};
}

}  // namespace gpukernel::simgpu::compiler
