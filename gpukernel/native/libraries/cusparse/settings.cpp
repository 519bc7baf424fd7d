// cuSPARSE's handles' settings, versions, statuses, and the older descriptors of matrices.
#include <mutex>
#include <unordered_map>

#include "libraries/cusparse/types.h"

namespace gpukernel::libraries {
const Statuses STATUSES{cusparse::NOT_INITIALIZED,  cusparse::ALLOC_FAILED,   cusparse::INVALID_VALUE,
                        cusparse::EXECUTION_FAILED, cusparse::INTERNAL_ERROR, cusparse::NOT_SUPPORTED};
}

namespace gpukernel::libraries::cusparse {

namespace {
// A matrix's kind, by the number of its property: type, half, diagonal, base of its indices.
struct Kinds {
    std::mutex mutex;
    std::unordered_map<const void*, int[4]> living;
};
Kinds& kinds() {
    static Kinds* const only = new Kinds;  // threads may be inside at exit
    return *only;
}
int set(const void* matrix, int property, int value, int most) {
    std::lock_guard lock(kinds().mutex);
    const auto it = kinds().living.find(matrix);
    if (it == kinds().living.end() || value < 0 || value > most) return INVALID_VALUE;
    return it->second[property] = value, SUCCESS;
}
int get(const void* matrix, int property) {
    std::lock_guard lock(kinds().mutex);
    const auto it = kinds().living.find(matrix);
    return it == kinds().living.end() ? 0 : it->second[property];
}
}  // namespace

int kind_of(const void* matrix) {
    return get(matrix, 0) | get(matrix, 1) << 8 | get(matrix, 2) << 16 | get(matrix, 3) << 24;
}

GPUKERNEL_EXPORT int cusparseSetStream(void* handle, CUstream stream) {
    StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    return own->stream = stream, SUCCESS;
}
GPUKERNEL_EXPORT int cusparseGetStream(void* handle, CUstream* stream) {
    const StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    return stream ? (*stream = own->stream, SUCCESS) : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseSetPointerMode(void* handle, int mode) {
    StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    if (mode < 0 || mode > 1) return INVALID_VALUE;
    return own->pointer_mode = mode, SUCCESS;
}
GPUKERNEL_EXPORT int cusparseGetPointerMode(void* handle, int* mode) {
    const StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    return mode ? (*mode = own->pointer_mode, SUCCESS) : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseGetVersion(void* handle, int* version) {
    if (!handle_of(handle)) return NOT_INITIALIZED;
    return version ? (*version = version_of(GPUKERNEL_MAJOR), SUCCESS) : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseGetProperty(int type, int* value) {
    if (!value || type < 0 || type > 2) return INVALID_VALUE;
    const int version = version_of(GPUKERNEL_MAJOR);
    *value = type == 0 ? version / 1000 : type == 1 ? version / 100 % 10 : version % 100;
    return SUCCESS;
}
GPUKERNEL_EXPORT const char* cusparseGetErrorName(int status) {
    switch (status) {
        case SUCCESS:
            return "CUSPARSE_STATUS_SUCCESS";
        case NOT_INITIALIZED:
            return "CUSPARSE_STATUS_NOT_INITIALIZED";
        case ALLOC_FAILED:
            return "CUSPARSE_STATUS_ALLOC_FAILED";
        case INVALID_VALUE:
            return "CUSPARSE_STATUS_INVALID_VALUE";
        case EXECUTION_FAILED:
            return "CUSPARSE_STATUS_EXECUTION_FAILED";
        case INTERNAL_ERROR:
            return "CUSPARSE_STATUS_INTERNAL_ERROR";
        case NOT_SUPPORTED:
            return "CUSPARSE_STATUS_NOT_SUPPORTED";
        default:
            return "unrecognized error code";
    }
}
GPUKERNEL_EXPORT const char* cusparseGetErrorString(int status) {
    switch (status) {
        case SUCCESS:
            return "success";
        case NOT_INITIALIZED:
            return "the library was not initialized";
        case ALLOC_FAILED:
            return "memory could not be allocated";
        case INVALID_VALUE:
            return "a parameter has a value that the function does not take";
        case EXECUTION_FAILED:
            return "the function failed on the device";
        case NOT_SUPPORTED:
            return "the function is not supported";
        default:
            return cusparseGetErrorName(status);
    }
}

GPUKERNEL_EXPORT int cusparseCreateMatDescr(void** matrix) {
    if (!matrix) return INVALID_VALUE;
    auto* const own = new char;
    std::lock_guard lock(kinds().mutex);
    kinds().living[own][0] = 0;
    return *matrix = own, SUCCESS;
}
GPUKERNEL_EXPORT int cusparseDestroyMatDescr(void* matrix) {
    std::lock_guard lock(kinds().mutex);
    if (!kinds().living.erase(matrix)) return INVALID_VALUE;
    delete static_cast<char*>(matrix);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cusparseSetMatType(void* matrix, int type) { return set(matrix, 0, type, 3); }
GPUKERNEL_EXPORT int cusparseGetMatType(const void* matrix) { return get(matrix, 0); }
GPUKERNEL_EXPORT int cusparseSetMatFillMode(void* matrix, int half) { return set(matrix, 1, half, 1); }
GPUKERNEL_EXPORT int cusparseGetMatFillMode(const void* matrix) { return get(matrix, 1); }
GPUKERNEL_EXPORT int cusparseSetMatDiagType(void* matrix, int diagonal) {
    return set(matrix, 2, diagonal, 1);
}
GPUKERNEL_EXPORT int cusparseGetMatDiagType(const void* matrix) { return get(matrix, 2); }
GPUKERNEL_EXPORT int cusparseSetMatIndexBase(void* matrix, int base) { return set(matrix, 3, base, 1); }
GPUKERNEL_EXPORT int cusparseGetMatIndexBase(const void* matrix) { return get(matrix, 3); }

}  // namespace gpukernel::libraries::cusparse
