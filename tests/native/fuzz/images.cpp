// Any bytes as a module image: what the shim makes of a pointer to them, and what the simulated driver reads
// of those that the worker lets pass.
#include "simgpu/driver/modules/images.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "common/image.h"
#include "wire/protocol.h"

using namespace gpukernel;

namespace {
constexpr uint32_t WRAPPER = 0x466243b1;
constexpr size_t HEADERS = 64;  // what extent_of may read of an image that is shorter than its own header

bool is_wrapper(const char* bytes, size_t size) {
    return size >= 4 && std::memcmp(bytes, &WRAPPER, sizeof WRAPPER) == 0;
}

void check(const simgpu::Image& image) {
    if ((image.error == CUDA_SUCCESS) == (image.texts.empty() && !image.message.empty())) std::abort();
}

void as_the_shim(const uint8_t* data, size_t size) {
    auto copy = std::make_unique<char[]>(size + HEADERS + 16);
    std::memcpy(copy.get(), data, size);
    if (is_wrapper(copy.get(), size)) {  // a pointer out of the input would be the fuzzer's own fault
        const char* inner = copy.get() + 16;
        std::memcpy(copy.get() + 8, &inner, sizeof inner);
    }
    std::string_view extent;
    if (wire::extent_of(copy.get(), extent) && extent.size() > wire::MAX_BODY) std::abort();
}

void as_the_worker(const uint8_t* data, size_t size) {
    auto exact = std::make_unique<char[]>(size);
    std::memcpy(exact.get(), data, size);
    if (wire::whole({exact.get(), size})) {  // cuModuleLoadData: no size, but a NUL
        auto text = std::make_unique<char[]>(size + 1);
        std::memcpy(text.get(), data, size);
        check(simgpu::read_image(text.get(), 0));
    }
    if (size && !is_wrapper(exact.get(), size))
        check(simgpu::read_image(exact.get(), size));  // cuLinkAddData
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    as_the_shim(data, size);
    as_the_worker(data, size);
    return 0;
}
