// NVRTC as programs on simulated devices see it: NVIDIA's own, but a cubin is the PTX that it was made from.
// NVRTC keeps the PTX of a program whatever it was compiled for ("NVRTC", nvrtcGetPTX), and a driver loads
// either.
#include <cstddef>

#include "compilers/forward.h"

#define FORWARDED_BY_ALL(X)        \
    X(nvrtcAddNameExpression)      \
    X(nvrtcCompileProgram)         \
    X(nvrtcCreateProgram)          \
    X(nvrtcDestroyProgram)         \
    X(nvrtcGetErrorString)         \
    X(nvrtcGetLTOIR)               \
    X(nvrtcGetLTOIRSize)           \
    X(nvrtcGetLoweredName)         \
    X(nvrtcGetNumSupportedArchs)   \
    X(nvrtcGetOptiXIR)             \
    X(nvrtcGetOptiXIRSize)         \
    X(nvrtcGetPCHCreateStatus)     \
    X(nvrtcGetPCHHeapSize)         \
    X(nvrtcGetPCHHeapSizeRequired) \
    X(nvrtcGetPTX)                 \
    X(nvrtcGetPTXSize)             \
    X(nvrtcGetProgramLog)          \
    X(nvrtcGetProgramLogSize)      \
    X(nvrtcGetSupportedArchs)      \
    X(nvrtcSetFlowCallback)        \
    X(nvrtcSetPCHHeapSize)         \
    X(nvrtcVersion)                \
    X(__nvrtcCPEx)
#if MAJOR == 12
#define FORWARDED(X) FORWARDED_BY_ALL(X) X(nvrtcGetNVVM) X(nvrtcGetNVVMSize)
#else
#define FORWARDED(X)              \
    FORWARDED_BY_ALL(X)           \
    X(nvrtcGetBundledHeadersInfo) \
    X(nvrtcInstallBundledHeaders) \
    X(nvrtcRemoveBundledHeaders)  \
    X(nvrtcGetTileIR)             \
    X(nvrtcGetTileIRSize)         \
    X(__nvrtcNvvmHandle)
#endif

FORWARDED(GPUKERNEL_SLOT)

namespace {
using namespace gpukernel::compilers;

constexpr int NVRTC_SUCCESS = 0, NVRTC_ERROR_INVALID_INPUT = 3, NVRTC_ERROR_INTERNAL_ERROR = 11;
int missing() { return NVRTC_ERROR_INTERNAL_ERROR; }
const char* no_sentence(int) { return "NVIDIA's NVRTC cannot be loaded"; }

using GetSize = int(void*, size_t*);
using GetData = int(void*, char*);
int no_size(void*, size_t*) { return NVRTC_ERROR_INTERNAL_ERROR; }
int no_data(void*, char*) { return NVRTC_ERROR_INTERNAL_ERROR; }
GetSize *cubin_size = no_size, *ptx_size = no_size;
GetData* ptx = no_data;

[[gnu::constructor]] void connect() {
    void* library = open_original("libnvrtc.so." GPUKERNEL_TEXT(MAJOR));
#define CONNECT(name) \
    gpukernel_slot_##name = reinterpret_cast<void*>(of_original<int()>(library, #name, missing));
    FORWARDED(CONNECT)
    if (!library) gpukernel_slot_nvrtcGetErrorString = reinterpret_cast<void*>(no_sentence);
    cubin_size = of_original<GetSize>(library, "nvrtcGetCUBINSize", no_size);
    ptx_size = of_original<GetSize>(library, "nvrtcGetPTXSize", no_size);
    ptx = of_original<GetData>(library, "nvrtcGetPTX", no_data);
}
}  // namespace

// Size 0 stays: the program was not compiled for a GPU (compute_NN), or to LTO-IR.
extern "C" [[gnu::visibility("default")]] int nvrtcGetCUBINSize(void* program, size_t* size) {
    const int result = cubin_size(program, size);
    return result != NVRTC_SUCCESS || *size == 0 ? result : ptx_size(program, size);
}

extern "C" [[gnu::visibility("default")]] int nvrtcGetCUBIN(void* program, char* cubin) {
    size_t size = 0;
    const int result = cubin_size(program, &size);
    if (result != NVRTC_SUCCESS) return result;
    if (!cubin) return NVRTC_ERROR_INVALID_INPUT;
    return size ? ptx(program, cubin) : NVRTC_SUCCESS;
}
