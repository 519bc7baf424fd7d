// Initialisation, contexts and modules.  No call says how much memory a context or a module takes, so it is
// measured; the end of a context gives back what was allocated in it.
#include <algorithm>
#include <utility>

#include "direct/charges.h"

using namespace gpukernel::direct;

namespace gpukernel::direct {
ChargeLedger& modules() {
    static auto& ledger = *new ChargeLedger;
    return ledger;
}
}  // namespace gpukernel::direct

namespace {
std::string mib(uint64_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

// --- contexts ---

std::mutex primaries_mutex;
auto& primaries = *new std::map<CUdevice, CUcontext>;

template <class Destroy>
CUresult context_made(CUresult result, CUdevice device, Destroy destroy) {
    Slice* const slice = Inside::depth || result != CUDA_SUCCESS ? nullptr : slice_of(device);
    if (!slice || !slice->measure() || slice->used() <= slice->limit()) return result;
    slice->tidy();
    if (slice->used() <= slice->limit()) return result;
    static bool told = false;
    if (!std::exchange(told, true))
        complain("a CUDA context alone takes more than is left of this slice of " + mib(slice->limit()) +
                 "; take a larger one, or remote mode, where the context is the worker's.");
    Inside inside;
    destroy();
    slice->measure();
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void context_gone(CUcontext context) {
    if (Inside::depth) return;
    for (ChargeLedger* ledger : {&memory(), &arrays()})
        ledger->forget(context, [](const Charge& charge) { charge.slice->give_back(charge.bytes); });
    modules().forget(context,
                     [](const Charge& charge) { charge.slice->add_overhead(-int64_t(charge.bytes)); });
    for (CUdevice device = 0; Slice* const slice = slice_of(device); ++device) slice->measure();
}

void primary_gone(CUdevice device) {
    std::lock_guard lock(primaries_mutex);
    if (const auto it = primaries.find(device); it != primaries.end()) {
        context_gone(it->second);
        primaries.erase(it);
    }
}

CUresult released(CUresult result, CUdevice device) {
    unsigned flags;
    int active = 1;
    if (result == CUDA_SUCCESS && real.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS &&
        !active)
        primary_gone(device);
    return result;
}

// --- modules ---

uint64_t free_on_device() {
    size_t free = 0, total = 0;
    return real.cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS ? free : 0;
}

// NVML knows what this process has; without it the device's free memory before and after must do, which other
// processes may change meanwhile: the agent's figure puts it right within seconds.
template <class Handle, class Load, class Unload>
CUresult load_measured(Handle* handle, Load load, Unload unload) {
    Slice* const slice = Inside::depth ? nullptr : current_slice();
    if (!slice) return load();
    if (slice->ended()) return CUDA_ERROR_OUT_OF_MEMORY;
    Inside inside;
    const uint64_t before = free_on_device();
    const CUresult result = load();
    if (result != CUDA_SUCCESS) return result;
    uint64_t bytes = 0;
    if (!slice->measure()) {
        const uint64_t after = free_on_device();
        bytes = before - std::min(before, after);
        slice->add_overhead(bytes);
    }
    if (slice->used() > slice->limit()) {
        slice->tidy();
        if (slice->used() > slice->limit()) {
            unload(*handle);
            slice->add_overhead(-int64_t(bytes));
            slice->measure();
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    modules().add(key(*handle), {slice, bytes, current_context()});
    return result;
}

template <class Handle, class Unload>
CUresult unload_measured(Handle handle, Unload unload) {
    const auto charge = Inside::depth ? std::nullopt : modules().take(key(handle));
    const CUresult result = unload();
    if (!charge) return result;
    if (result != CUDA_SUCCESS)
        modules().add(key(handle), *charge);
    else if (!charge->slice->measure())
        charge->slice->add_overhead(-int64_t(charge->bytes));
    return result;
}
}  // namespace

extern "C" CUresult cuInit(unsigned int Flags) {
    if (const CUresult error = join_lease(); error != CUDA_SUCCESS) return error;
    const CUresult result = real.cuInit(Flags);
    return result == CUDA_SUCCESS ? find_devices() : result;
}

extern "C" CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
    const CUresult result = context_made(real.cuDevicePrimaryCtxRetain(pctx, dev), dev,
                                         [=] { real.cuDevicePrimaryCtxRelease_v2(dev); });
    if (result == CUDA_SUCCESS && !Inside::depth) {
        std::lock_guard lock(primaries_mutex);
        primaries[dev] = *pctx;
    }
    return result;
}
extern "C" CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
    return released(real.cuDevicePrimaryCtxRelease_v2(dev), dev);
}
extern "C" CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
    return released(real.cuDevicePrimaryCtxRelease(dev), dev);
}
extern "C" CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
    const CUresult result = real.cuDevicePrimaryCtxReset_v2(dev);
    if (result == CUDA_SUCCESS) primary_gone(dev);
    return result;
}
extern "C" CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
    const CUresult result = real.cuDevicePrimaryCtxReset(dev);
    if (result == CUDA_SUCCESS) primary_gone(dev);
    return result;
}

extern "C" CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
    return context_made(real.cuCtxCreate_v2(pctx, flags, dev), dev, [=] { real.cuCtxDestroy_v2(*pctx); });
}
extern "C" CUresult cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam* paramsArray, int numParams,
                                   unsigned int flags, CUdevice dev) {
    return context_made(real.cuCtxCreate_v3(pctx, paramsArray, numParams, flags, dev), dev,
                        [=] { real.cuCtxDestroy_v2(*pctx); });
}
extern "C" CUresult cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* ctxCreateParams, unsigned int flags,
                                   CUdevice dev) {
    return context_made(real.cuCtxCreate_v4(pctx, ctxCreateParams, flags, dev), dev,
                        [=] { real.cuCtxDestroy_v2(*pctx); });
}
extern "C" CUresult cuCtxDestroy_v2(CUcontext ctx) {
    const CUresult result = real.cuCtxDestroy_v2(ctx);
    if (result == CUDA_SUCCESS) context_gone(ctx);
    return result;
}

extern "C" CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    const CUresult result = real.cuCtxSetLimit(limit, value);
    if (Slice* const slice = Inside::depth ? nullptr : current_slice()) slice->measure();
    return result;
}

extern "C" CUresult cuModuleLoad(CUmodule* module, const char* fname) {
    return load_measured(module, [=] { return real.cuModuleLoad(module, fname); }, real.cuModuleUnload);
}
extern "C" CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    return load_measured(module, [=] { return real.cuModuleLoadData(module, image); }, real.cuModuleUnload);
}
extern "C" CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int numOptions,
                                       CUjit_option* options, void** optionValues) {
    return load_measured(
        module, [=] { return real.cuModuleLoadDataEx(module, image, numOptions, options, optionValues); },
        real.cuModuleUnload);
}
extern "C" CUresult cuModuleLoadFatBinary(CUmodule* module, const void* fatCubin) {
    return load_measured(
        module, [=] { return real.cuModuleLoadFatBinary(module, fatCubin); }, real.cuModuleUnload);
}
extern "C" CUresult cuModuleUnload(CUmodule hmod) {
    return unload_measured(hmod, [=] { return real.cuModuleUnload(hmod); });
}

extern "C" CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jitOptions,
                                      void** jitOptionsValues, unsigned int numJitOptions,
                                      CUlibraryOption* libraryOptions, void** libraryOptionValues,
                                      unsigned int numLibraryOptions) {
    return load_measured(
        library,
        [=] {
            return real.cuLibraryLoadData(library, code, jitOptions, jitOptionsValues, numJitOptions,
                                          libraryOptions, libraryOptionValues, numLibraryOptions);
        },
        real.cuLibraryUnload);
}
extern "C" CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* fileName, CUjit_option* jitOptions,
                                          void** jitOptionsValues, unsigned int numJitOptions,
                                          CUlibraryOption* libraryOptions, void** libraryOptionValues,
                                          unsigned int numLibraryOptions) {
    return load_measured(
        library,
        [=] {
            return real.cuLibraryLoadFromFile(library, fileName, jitOptions, jitOptionsValues, numJitOptions,
                                              libraryOptions, libraryOptionValues, numLibraryOptions);
        },
        real.cuLibraryUnload);
}
extern "C" CUresult cuLibraryUnload(CUlibrary library) {
    return unload_measured(library, [=] { return real.cuLibraryUnload(library); });
}
