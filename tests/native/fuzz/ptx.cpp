// Any bytes as PTX: parsed, linked and decoded; what kernels come out of it are run on device memory of a few
// MiB, interpreted and compiled.  A NUL separates texts that are linked together.
//
// The two tiers are held to the same faults and the same bytes where a warp runs alone: the order of several
// warps is nobody's to rely on.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "simgpu/engine.h"

using namespace gpukernel::simgpu;

namespace {
constexpr size_t CAPACITY = 4 << 20, BUFFER = 4 << 10;
constexpr size_t MOST_KERNELS = 3;

// What the buffer's address names as a texture or surface handle: a shape of its first bytes.
std::shared_ptr<const Textures> textures(uint64_t buffer, size_t kind) {
    Texture texture;
    texture.channel = static_cast<ChannelFormat>(kind % 8);
    texture.texel_bytes = kind % 8 < 1 || kind % 8 == 3                     ? 1
                          : kind % 8 == 1 || kind % 8 == 4 || kind % 8 == 6 ? 2
                                                                            : 4;
    texture.normalized_coordinates = texture.filter = texture.filter_levels = kind & 1;
    texture.cube = texture.layered = kind & 2;
    texture.surface = kind & 4;
    const uint64_t row = 5 * texture.texel_bytes;
    texture.levels = {{buffer, 5, 5, 12, row, 5 * row}, {buffer + 4, 2, 2, 12, row, 5 * row}};
    texture.most_level = 9;
    auto all = std::make_shared<Textures>();
    (*all)[buffer] = std::make_shared<const Texture>(texture);
    return all;
}

// Cancels the launch that has run for a while since it began: every turn of a warp looks.  The processor's
// time counts, or a busy machine would leave little to compare; of a kernel that sleeps, the clock's.
class Deadline {
  public:
    Deadline() {
        std::thread([this] {
            for (;;) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
                if (std::clock() >= used_up_.load() || std::chrono::steady_clock::now() >= ends_.load())
                    over_ = true;
            }
        }).detach();
    }
    const std::atomic<bool>* begin() {
        ends_ = std::chrono::steady_clock::now() + std::chrono::seconds(1);
        used_up_ = std::clock() + CLOCKS_PER_SEC / 50;
        over_ = false;
        return &over_;
    }

  private:
    std::atomic<std::chrono::steady_clock::time_point> ends_{std::chrono::steady_clock::time_point::max()};
    std::atomic<std::clock_t> used_up_{std::numeric_limits<std::clock_t>::max()};
    std::atomic<bool> over_{false};
};
Deadline& deadline() {
    static auto* const only = new Deadline;  // its thread outlives main
    return *only;
}

// What a launch has left behind.
struct Outcome {
    Status status;
    std::string message, printed;
    std::vector<char> bytes;  // of the buffer
    bool operator==(const Outcome&) const = default;
};
uint64_t compared = 0;  // launches

Outcome run(Module& module, const DeviceMemory& memory, const std::string& name, uint64_t buffer, size_t kind,
            Dim3 grid, Dim3 block, bool cooperative) {
    const KernelInfo* info = module.kernel(name);
    std::vector<char> params(info->param_bytes);
    for (const Param& p : info->params) {  // what has the size of a pointer points at the buffer
        const uint64_t value = p.size == 8 ? buffer : 65;
        std::memcpy(params.data() + p.offset, &value, std::min<size_t>(p.size, 8));
    }
    // A kernel's own free() may have taken the buffer.
    char* const bytes = memory.valid(buffer, BUFFER, true) ? reinterpret_cast<char*>(buffer) : nullptr;
    for (size_t n = 0; bytes && n < BUFFER; ++n) bytes[n] = static_cast<char>(n * 7);
    Outcome out;
    Launch launch;
    launch.grid = grid;
    launch.block = block;
    launch.dynamic_shared_bytes = 64;
    launch.params = params.data();
    launch.cooperative = cooperative;
    launch.textures = textures(buffer, kind);
    launch.cancel = deadline().begin();
    launch.print = [&](std::string_view text) { out.printed += text; };
    const Result result = module.run(name, launch);
    out.status = result.status, out.message = result.message;
    if (bytes && memory.valid(buffer, BUFFER)) out.bytes.assign(bytes, bytes + BUFFER);
    return out;
}

// What a text comes to in one tier: the launches that the other tier must repeat.
struct Run {
    uint64_t buffer;
    std::vector<Outcome> outcomes;
};
Run run_all(const std::vector<std::string>& texts, const char* tier, size_t size) {
    ::setenv("GPUKERNEL_SIMGPU_TIER", tier, 1);
    auto memory = make_device_memory(CAPACITY);
    const auto buffer = memory->allocate(BUFFER);
    if (!buffer) std::abort();
    Run all{*buffer, {}};
    {
        std::unique_ptr<Module> module;
        std::string log;
        const std::vector<std::string_view> views(texts.begin(), texts.end());
        const Result loaded = load_module(views, *memory, 90, 80, module, log);
        if (static_cast<bool>(loaded) != (module != nullptr) || (!loaded && loaded.message.empty()))
            std::abort();
        for (size_t k = 0; module && k < std::min(MOST_KERNELS, module->kernels().size()); ++k) {
            const std::string& name = module->kernels()[k];
            for (const uint32_t lanes : {32, 20})
                all.outcomes.push_back(
                    run(*module, *memory, name, *buffer, k + size, {1, 1, 1}, {lanes, 1, 1}, k == 1));
            // Two whole warps, which the interpreter runs together, and one thread: not to be compared.
            run(*module, *memory, name, *buffer, k + size, {2, 1, 1}, {65, 1, 1}, k == 1);
        }
    }
    // What the module had has gone with it; a kernel's own free() may have taken the buffer.
    if (memory->used() > CAPACITY) std::abort();
    return all;
}

// Whether a text may compute something else each time: it reads clocks or launch numbers, or from registers
// of lanes that do not run.
bool is_fickle(const std::vector<std::string>& texts) {
    for (const std::string& text : texts)
        for (const char* word : {"clock", "timer", "gridid", "shfl", "%pm", "nanosleep"})
            if (text.find(word) != std::string::npos) return true;
    return false;
}

void differ(const Outcome& interpreted, const Outcome& compiled) {
    size_t at = 0;
    while (at < std::min(interpreted.bytes.size(), compiled.bytes.size()) &&
           interpreted.bytes[at] == compiled.bytes[at])
        ++at;
    std::fprintf(stderr, "the tiers differ, from byte %zu on\n  interpreted: %d %s\n  compiled: %d %s\n", at,
                 static_cast<int>(interpreted.status), interpreted.message.c_str(),
                 static_cast<int>(compiled.status), compiled.message.c_str());
    std::abort();
}
bool was_cancelled(const Outcome& outcome) { return outcome.message.ends_with("the launch was cancelled"); }
}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    ::setenv("GPUKERNEL_SIMGPU_THREADS", "1", 1);
    std::atexit(
        [] { std::fprintf(stderr, "compared %llu launches\n", static_cast<unsigned long long>(compared)); });
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    std::vector<std::string> texts(1);
    for (size_t i = 0; i < size; ++i)
        if (data[i])
            texts.back() += static_cast<char>(data[i]);
        else
            texts.emplace_back();
    Run interpreted = run_all(texts, "interpreter", size);
    if (interpreted.outcomes.empty()) return 0;  // the same text, the same refusal
    const Run compiled = run_all(texts, "compiled", size);
    // The first memory of a process seldom lies where later ones do.
    if (interpreted.buffer != compiled.buffer) interpreted = run_all(texts, "interpreter", size);
    if (interpreted.outcomes.size() != compiled.outcomes.size()) std::abort();
    // Kernels see addresses, so they are compared only where the host gave the same ones again.
    if (interpreted.buffer != compiled.buffer || is_fickle(texts)) return 0;
    for (size_t n = 0; n < compiled.outcomes.size(); ++n) {
        // One tier comes to ask sooner; what a later kernel finds in the module's variables depends on it.
        if (was_cancelled(interpreted.outcomes[n]) || was_cancelled(compiled.outcomes[n])) break;
        if (interpreted.outcomes[n] != compiled.outcomes[n])
            differ(interpreted.outcomes[n], compiled.outcomes[n]);
        ++compared;
        if (interpreted.outcomes[n].status != Status::ok) break;  // a GPU runs nothing after a fault
        if (n % 2) break;  // the launch of several warps has left what it liked in the module's variables
    }
    return 0;
}
