// Any bytes as PTX: parsed, linked and decoded; what kernels come out of it are run on device memory of a few
// MiB.  A NUL separates texts that are linked together.
#include <cstdlib>
#include <cstring>
#include <string>

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

void run(Module& module, const std::string& name, uint64_t buffer, bool cooperative, size_t kind) {
    const KernelInfo* info = module.kernel(name);
    std::vector<char> params(info->param_bytes);
    for (const Param& p : info->params) {  // what has the size of a pointer points at the buffer
        const uint64_t value = p.size == 8 ? buffer : 65;
        std::memcpy(params.data() + p.offset, &value, std::min<size_t>(p.size, 8));
    }
    const std::atomic<bool> cancel = true;  // as soon as anybody asks: after SIMGPU_SLICE turns of a loop
    Launch launch;
    launch.grid = {2, 1, 1};
    launch.block = {65, 1, 1};  // two whole warps, which run together, and one thread
    launch.dynamic_shared_bytes = 64;
    launch.params = params.data();
    launch.cooperative = cooperative;
    launch.textures = textures(buffer, kind);
    launch.cancel = &cancel;
    launch.print = [](std::string_view) {};
    module.run(name, launch);
}
}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    ::setenv("GPUKERNEL_SIMGPU_THREADS", "1", 1);
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    std::vector<std::string> texts(1);
    for (size_t i = 0; i < size; ++i)
        if (data[i])
            texts.back() += static_cast<char>(data[i]);
        else
            texts.emplace_back();
    auto memory = make_device_memory(CAPACITY);
    const auto buffer = memory->allocate(BUFFER);
    if (!buffer) std::abort();
    {
        std::unique_ptr<Module> module;
        std::string log;
        const std::vector<std::string_view> views(texts.begin(), texts.end());
        const Result loaded = load_module(views, *memory, 90, 80, module, log);
        if (static_cast<bool>(loaded) != (module != nullptr) || (!loaded && loaded.message.empty()))
            std::abort();
        for (size_t k = 0; module && k < std::min(MOST_KERNELS, module->kernels().size()); ++k)
            run(*module, module->kernels()[k], *buffer, k == 1, k + size);
    }
    // What the module had has gone with it; a kernel's own free() may have taken the buffer.
    if (memory->used() > CAPACITY) std::abort();
    return 0;
}
