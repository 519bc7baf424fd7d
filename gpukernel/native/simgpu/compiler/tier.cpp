// Which kernels are compiled, and the memory that their code lies in.
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "simgpu/compiler/compiler.h"
#include "simgpu/compiler/machine_code.h"
#include "simgpu/exec/processor.h"

namespace gpukernel::simgpu::compiler {
namespace {

constexpr size_t kMostCode = 64 << 20;  // bytes of all kernels of a process
std::atomic<size_t> code_bytes{0};

bool logs() {
    const char* text = std::getenv("GPUKERNEL_SIMGPU_TIER_LOG");
    return text && std::string_view(text) == "1";
}

void tell(const Function& function, const CompiledKernel& kernel, std::chrono::microseconds took) {
    if (!logs()) return;
    if (!kernel.refused().empty()) {
        std::fprintf(stderr, "gpukernel: %s: interpreted: %s\n", function.name.c_str(),
                     kernel.refused().c_str());
        return;
    }
    const MachineCode& image = kernel.image();
    std::string names;
    for (const std::string& name : image.handlers) names += (names.empty() ? " (" : ", ") + name;
    if (!names.empty()) names += ")";
    std::fprintf(stderr,
                 "gpukernel: %s: compiled: %u operations, %u more by handlers%s, %zu bytes, %lld us\n",
                 function.name.c_str(), image.native, image.called, names.c_str(), image.code.size(),
                 static_cast<long long>(took.count()));
}

}  // namespace

Tier wanted_tier() {
    const char* text = std::getenv("GPUKERNEL_SIMGPU_TIER");
    const std::string_view name = text ? text : "interpreter";
    if (name == "compiled") return Tier::compiled;
    if (name == "auto") return Tier::automatic;
    static std::atomic<bool> told{false};
    if (name != "interpreter" && !told.exchange(true))
        std::fprintf(stderr,
                     "gpukernel: GPUKERNEL_SIMGPU_TIER is interpreter, compiled or auto, and not '%s'\n",
                     text);
    return Tier::interpreter;
}

CompiledKernel::CompiledKernel(const Function& function, bool rows)
    : image_(std::make_unique<MachineCode>()) {
#if !defined __x86_64__
    refused_ = "there is a compiler for x86-64 only";
    return;
#endif
    if (processor_level() < 4) {
        refused_ = "this processor has no AVX-512";
        return;
    }
    image_->flow = analyse(function, rows);
    refused_ = image_->flow.refused;
    if (!refused_.empty()) return;
    generate(*image_);
    const size_t wanted = (image_->code.size() + 4095) / 4096 * 4096;
    if (code_bytes.fetch_add(wanted) + wanted > kMostCode) {
        code_bytes -= wanted;
        refused_ = "the code of this process's kernels has no more room";
        return;
    }
    void* at = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        code_bytes -= wanted;
        refused_ = "the host has no memory for code";
        return;
    }
    code_ = static_cast<char*>(at), bytes_ = wanted;
    std::memcpy(code_, image_->code.data(), image_->code.size());
    if (mprotect(at, wanted, PROT_READ | PROT_EXEC) != 0)
        refused_ = "the host forbids code that was written at run time";
}

CompiledKernel::~CompiledKernel() {
    if (!code_) return;
    munmap(code_, bytes_);
    code_bytes -= bytes_;
}

uint32_t CompiledKernel::enter(Context& context, Warp& warp, uint32_t block) const {
    using Enter = uint32_t (*)(Context*, Warp*, const char*);
    return reinterpret_cast<Enter>(code_ + image_->enter)(&context, &warp, code_ + image_->entries[block]);
}

const CompiledKernel* code_for(const Program& program, const Function& function, const Launch& launch) {
    const Tier tier = program.tier;
    if (tier == Tier::interpreter) return nullptr;
    static std::mutex making;
    {
        std::lock_guard lock(making);
        if (!function.compiled) function.compiled = std::make_shared<Kernels>();
    }
    Kernels& kernels = *function.compiled;
    std::lock_guard lock(kernels.mutex);
    if (++kernels.launches == 1 && tier == Tier::automatic) return nullptr;
    const bool rows = launch.block.x % kLanes == 0 || (launch.block.y == 1 && launch.block.z == 1);
    std::unique_ptr<CompiledKernel>& kernel = kernels.of[rows];
    if (!kernel) {
        const auto begin = std::chrono::steady_clock::now();
        kernel = std::make_unique<CompiledKernel>(function, rows);
        tell(function, *kernel,
             std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin));
    }
    return kernel->refused().empty() ? kernel.get() : nullptr;
}

}  // namespace gpukernel::simgpu::compiler
