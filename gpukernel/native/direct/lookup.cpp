// cuGetProcAddress: our own entry for what is intercepted, the driver's pointer for everything else, names
// that cuda.h does not know included.
#include <cuda_newest.h>

#include <cstring>

#include "direct/real.h"

using namespace gpukernel::direct;

namespace {
struct Revision {
    const char* base;
    int version;  // CUDA's, from which on this is the one
    bool per_thread;
    const char* symbol;
    void* ours;
};
const Revision revisions[] = {
// newest first
#define GPUKERNEL_REVISION(base, version, per_thread, symbol, ours) {base, version, per_thread, symbol, ours},
#include "revisions.inc"
#undef GPUKERNEL_REVISION
};

struct Known {
    void* theirs;
    void* ours;
};
// The driver's own pointers for what is intercepted.
const Known* known() {
    static const Known table[] = {
#define GPUKERNEL_INTERCEPTED(name) {reinterpret_cast<void*>(real.name), reinterpret_cast<void*>(&name)},
#include "intercepted.inc"
#undef GPUKERNEL_INTERCEPTED
        {nullptr, nullptr}};
    return table;
}

// By its base name, or by the name that is exported (libcuda/entry_points.h).
bool means(const Revision& revision, const char* name) {
    if (std::strcmp(revision.base, name) == 0) return true;
    const size_t length = std::strlen(name);
    if (std::strncmp(revision.symbol, name, length) != 0) return false;
    const char* const rest = revision.symbol + length;
    return !*rest || std::strcmp(rest, "_ptds") == 0 || std::strcmp(rest, "_ptsz") == 0;
}

// The function that `symbol` means at `version`, where the driver answered `theirs`.
void* entry_for(const char* symbol, int version, cuuint64_t flags, void* theirs) {
    for (const Known* one = known(); one->ours; ++one)
        if (one->theirs == theirs) return one->ours;
    // The driver may hand out other pointers than it exports.  Then the headers say which version is meant,
    // as far as they reach; a version newer than they are may have other parameters, and stays the driver's.
    if (version > GPUKERNEL_CUDA_VERSION) return theirs;
    const bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    for (const bool suffix : {per_thread, false}) {
        for (const Revision& revision : revisions)
            if (revision.per_thread == suffix && revision.version <= version && means(revision, symbol))
                return revision.ours ? revision.ours : theirs;
        if (!suffix) break;
    }
    return theirs;
}
}  // namespace

extern "C" CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                                        CUdriverProcAddressQueryResult* symbolStatus) {
    const CUresult result = real.cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, symbolStatus);
    if (result == CUDA_SUCCESS && symbol && pfn && *pfn) *pfn = entry_for(symbol, cudaVersion, flags, *pfn);
    return result;
}

extern "C" CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags) {
    const CUresult result = real.cuGetProcAddress(symbol, pfn, cudaVersion, flags);
    if (result == CUDA_SUCCESS && symbol && pfn && *pfn) *pfn = entry_for(symbol, cudaVersion, flags, *pfn);
    return result;
}
