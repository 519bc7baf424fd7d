// cuSOLVER's functions that need no device: a handle's settings, versions, and the objects in which a program
// keeps its wishes.
#include <mutex>
#include <unordered_set>

#include "libraries/cusolver/types.h"

namespace gpukernel::libraries {
const Statuses STATUSES{cusolver::NOT_INITIALIZED,  cusolver::ALLOC_FAILED,   cusolver::INVALID_VALUE,
                        cusolver::EXECUTION_FAILED, cusolver::INTERNAL_ERROR, cusolver::NOT_SUPPORTED};
}

namespace gpukernel::libraries::cusolver {

namespace {
// What such an object has: the methods by which values are found, which are the library's own affair here.
struct Wishes {
    std::mutex mutex;
    std::unordered_set<void*> living;
};
Wishes& wishes() {
    static Wishes* const only = new Wishes;  // threads may be inside at exit
    return *only;
}
int make(void** object) {
    if (!object) return INVALID_VALUE;
    std::lock_guard lock(wishes().mutex);
    wishes().living.insert(*object = new char);
    return SUCCESS;
}
int end(void* object) {
    std::lock_guard lock(wishes().mutex);
    if (!wishes().living.erase(object)) return INVALID_VALUE;
    delete static_cast<char*>(object);
    return SUCCESS;
}
int known(void* object, bool allowed) {
    std::lock_guard lock(wishes().mutex);
    return allowed && wishes().living.contains(object) ? SUCCESS : INVALID_VALUE;
}
}  // namespace

GPUKERNEL_EXPORT int cusolverDnSetStream(void* handle, CUstream stream) {
    StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    own->stream = stream;
    return SUCCESS;
}
GPUKERNEL_EXPORT int cusolverDnGetStream(void* handle, CUstream* stream) {
    const StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    if (!stream) return INVALID_VALUE;
    *stream = own->stream;
    return SUCCESS;
}
GPUKERNEL_EXPORT int cusolverDnSetDeterministicMode(void* handle, int mode) {
    StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    if (mode < 1 || mode > 2) return INVALID_VALUE;
    own->mode = mode;
    return SUCCESS;
}
GPUKERNEL_EXPORT int cusolverDnGetDeterministicMode(void* handle, int* mode) {
    const StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    if (!mode) return INVALID_VALUE;
    *mode = own->mode ? own->mode : 1;
    return SUCCESS;
}
GPUKERNEL_EXPORT int cusolverGetVersion(int* version) {
    if (!version) return INVALID_VALUE;
    *version = version_of(GPUKERNEL_MAJOR);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cusolverGetProperty(int type, int* value) {
    if (!value || type < 0 || type > 2) return INVALID_VALUE;
    const int version = version_of(GPUKERNEL_MAJOR);
    *value = type == 0 ? version / 1000 : type == 1 ? version / 100 % 10 : version % 100;
    return SUCCESS;
}

GPUKERNEL_EXPORT int cusolverDnCreateParams(void** object) { return make(object); }
GPUKERNEL_EXPORT int cusolverDnDestroyParams(void* object) { return end(object); }
GPUKERNEL_EXPORT int cusolverDnSetAdvOptions(void* object, int, int algorithm) {
    return known(object, algorithm >= 0 && algorithm <= 2);
}
GPUKERNEL_EXPORT int cusolverDnCreateSyevjInfo(void** object) { return make(object); }
GPUKERNEL_EXPORT int cusolverDnDestroySyevjInfo(void* object) { return end(object); }
GPUKERNEL_EXPORT int cusolverDnXsyevjSetTolerance(void* object, double) { return known(object, true); }
GPUKERNEL_EXPORT int cusolverDnXsyevjSetMaxSweeps(void* object, int sweeps) {
    return known(object, sweeps > 0);
}
GPUKERNEL_EXPORT int cusolverDnXsyevjSetSortEig(void* object, int) { return known(object, true); }
GPUKERNEL_EXPORT int cusolverDnCreateGesvdjInfo(void** object) { return make(object); }
GPUKERNEL_EXPORT int cusolverDnDestroyGesvdjInfo(void* object) { return end(object); }
GPUKERNEL_EXPORT int cusolverDnXgesvdjSetTolerance(void* object, double) { return known(object, true); }
GPUKERNEL_EXPORT int cusolverDnXgesvdjSetMaxSweeps(void* object, int sweeps) {
    return known(object, sweeps > 0);
}
GPUKERNEL_EXPORT int cusolverDnXgesvdjSetSortEig(void* object, int) { return known(object, true); }

}  // namespace gpukernel::libraries::cusolver
