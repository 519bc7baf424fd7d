#include "libraries/client.h"

namespace gpukernel::libraries {

const Port* port() {
    static const Port* const found = [] {
        auto* const find = driver_function<const Port*(uint32_t)>(PORT);
        const Port* const its = find ? find(PORT_VERSION) : nullptr;
        if (!its)
            complain(
                driver()
                    ? "this library forwards its calls through gpukernel's libcuda.so.1, and the one that is "
                      "loaded is another: use NVIDIA's own math libraries with it"
                    : "there is no libcuda.so.1: is this program on a slice?");
        return its;
    }();
    return found;
}

CUresult ask(const PortCall& call, bool waits, const char* name, int32_t& status, void* outputs, size_t size,
             size_t& got) {
    char sentence[1024];
    const bool small = size < sizeof sentence;  // room for the sentence, whatever the answer's size
    const CUresult result =
        port()->ask(&call, waits, &status, small ? sentence : outputs, small ? sizeof sentence : size, &got);
    if (result != CUDA_SUCCESS) return result;
    const char* const from = small ? sentence : static_cast<const char*>(outputs);
    if (status) {
        if (got) complain(std::string(name) + ": " + std::string(from, got));
        got = 0;
        return result;
    }
    if (small && got) std::memcpy(outputs, sentence, got = std::min(got, size));
    return result;
}

}  // namespace gpukernel::libraries
