// What cuBLAS answers without the device: a handle's settings, versions, names of errors, copies of the
// driver's.
#include "libraries/cublas/handle.h"

namespace gpukernel::libraries::cublas {

namespace {
template <class T>
int get(void* handle, T Settings::* field, T* value) {
    const Handle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    if (!value) return INVALID_VALUE;
    *value = own->settings.*field;
    return SUCCESS;
}
template <class T>
int set(void* handle, T Settings::* field, T value, bool valid) {
    Handle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    if (!valid) return INVALID_VALUE;
    own->settings.*field = value;
    return SUCCESS;
}
}  // namespace

GPUKERNEL_EXPORT int cublasGetVersion_v2(void* handle, int* version) {
    if (!version) return INVALID_VALUE;
    const Handle* const own = handle_of(handle);  // without one, as NVIDIA's: what this library is
    *version = own && own->version ? own->version : version_of(GPUKERNEL_MAJOR);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cublasGetProperty(int type, int* value) {
    return property(type, GPUKERNEL_MAJOR, value);
}
GPUKERNEL_EXPORT size_t cublasGetCudartVersion() { return GPUKERNEL_MAJOR * 1000; }

GPUKERNEL_EXPORT int cublasSetStream_v2(void* handle, CUstream stream) {
    // As NVIDIA's: a workspace of the program's goes with the stream.
    if (Handle* const own = handle_of(handle))
        own->settings.workspace = nullptr, own->settings.workspace_bytes = 0;
    return set(handle, &Settings::stream, stream, true);
}
GPUKERNEL_EXPORT int cublasGetStream_v2(void* handle, CUstream* stream) {
    return get(handle, &Settings::stream, stream);
}
GPUKERNEL_EXPORT int cublasSetPointerMode_v2(void* handle, int mode) {
    return set(handle, &Settings::pointer_mode, mode, mode == HOST || mode == DEVICE);
}
GPUKERNEL_EXPORT int cublasGetPointerMode_v2(void* handle, int* mode) {
    return get(handle, &Settings::pointer_mode, mode);
}
GPUKERNEL_EXPORT int cublasSetAtomicsMode(void* handle, int mode) {
    return set(handle, &Settings::atomics, mode, mode == 0 || mode == 1);
}
GPUKERNEL_EXPORT int cublasGetAtomicsMode(void* handle, int* mode) {
    return get(handle, &Settings::atomics, mode);
}
GPUKERNEL_EXPORT int cublasSetMathMode(void* handle, int mode) {
    return set(handle, &Settings::math_mode, mode, (mode & ~16) >= 0 && (mode & ~16) <= 4);
}
GPUKERNEL_EXPORT int cublasGetMathMode(void* handle, int* mode) {
    return get(handle, &Settings::math_mode, mode);
}
GPUKERNEL_EXPORT int cublasSetSmCountTarget(void* handle, int count) {
    return set(handle, &Settings::multiprocessors, count, count >= 0);
}
GPUKERNEL_EXPORT int cublasGetSmCountTarget(void* handle, int* count) {
    return get(handle, &Settings::multiprocessors, count);
}
GPUKERNEL_EXPORT int cublasSetWorkspace_v2(void* handle, void* workspace, size_t bytes) {
    Handle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    if (reinterpret_cast<uintptr_t>(workspace) % 256) return INVALID_VALUE;
    own->settings.workspace = workspace, own->settings.workspace_bytes = workspace ? bytes : 0;
    return SUCCESS;
}

GPUKERNEL_EXPORT const char* cublasGetStatusName(int status) { return status_name(status); }
GPUKERNEL_EXPORT const char* cublasGetStatusString(int status) { return status_text(status); }

// Nothing is logged.
namespace {
void (*callback)(const char*) = nullptr;
}
GPUKERNEL_EXPORT int cublasLoggerConfigure(int, int, int, const char*) { return SUCCESS; }
GPUKERNEL_EXPORT int cublasSetLoggerCallback(void (*user)(const char*)) { return callback = user, SUCCESS; }
GPUKERNEL_EXPORT int cublasGetLoggerCallback(void (**user)(const char*)) {
    return user ? (*user = callback, SUCCESS) : INVALID_VALUE;
}

// --- copies between host and device, which are the driver's ---

namespace {
// `rows` elements of each of `columns` columns, whose elements lie one beside the other.
int copy(bool to_device, int64_t rows, int64_t columns, int64_t element, const void* from, int64_t from_pitch,
         void* to, int64_t to_pitch, const CUstream* stream) {
    if (rows < 0 || columns < 0 || element <= 0 || from_pitch <= 0 || to_pitch <= 0) return INVALID_VALUE;
    if (!rows || !columns) return SUCCESS;
    CUDA_MEMCPY2D plan{};
    uint64_t width, before, behind;
    if (__builtin_mul_overflow(rows, element, &width) ||
        __builtin_mul_overflow(from_pitch, element, &before) ||
        __builtin_mul_overflow(to_pitch, element, &behind))
        return INVALID_VALUE;
    plan.srcMemoryType = to_device ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    plan.dstMemoryType = to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    plan.srcHost = plan.dstHost = nullptr;
    (to_device ? plan.srcHost : *const_cast<const void**>(&plan.dstHost)) = to_device ? from : to;
    (to_device ? plan.dstDevice : plan.srcDevice) = reinterpret_cast<CUdeviceptr>(to_device ? to : from);
    plan.srcPitch = before, plan.dstPitch = behind, plan.WidthInBytes = width;
    plan.Height = static_cast<size_t>(columns);
    static auto* const now = driver_function<CUresult(const CUDA_MEMCPY2D*)>("cuMemcpy2DUnaligned_v2");
    static auto* const later =
        driver_function<CUresult(const CUDA_MEMCPY2D*, CUstream)>("cuMemcpy2DAsync_v2");
    if (!now || !later) return NOT_INITIALIZED;
    return (stream ? later(&plan, *stream) : now(&plan)) == CUDA_SUCCESS ? SUCCESS : MAPPING_ERROR;
}
}  // namespace

#define GPUKERNEL_COPIES(Suffix, Int)                                                                        \
    GPUKERNEL_EXPORT int cublasSetVector##Suffix(Int n, Int element, const void* x, Int incx, void* y,       \
                                                 Int incy) {                                                 \
        return copy(true, 1, n, element, x, incx, y, incy, nullptr);                                         \
    }                                                                                                        \
    GPUKERNEL_EXPORT int cublasGetVector##Suffix(Int n, Int element, const void* x, Int incx, void* y,       \
                                                 Int incy) {                                                 \
        return copy(false, 1, n, element, x, incx, y, incy, nullptr);                                        \
    }                                                                                                        \
    GPUKERNEL_EXPORT int cublasSetMatrix##Suffix(Int rows, Int columns, Int element, const void* A, Int lda, \
                                                 void* B, Int ldb) {                                         \
        return lda < rows || ldb < rows ? INVALID_VALUE                                                      \
                                        : copy(true, rows, columns, element, A, lda, B, ldb, nullptr);       \
    }                                                                                                        \
    GPUKERNEL_EXPORT int cublasGetMatrix##Suffix(Int rows, Int columns, Int element, const void* A, Int lda, \
                                                 void* B, Int ldb) {                                         \
        return lda < rows || ldb < rows ? INVALID_VALUE                                                      \
                                        : copy(false, rows, columns, element, A, lda, B, ldb, nullptr);      \
    }                                                                                                        \
    GPUKERNEL_EXPORT int cublasSetVectorAsync##Suffix(Int n, Int element, const void* x, Int incx, void* y,  \
                                                      Int incy, CUstream stream) {                           \
        return copy(true, 1, n, element, x, incx, y, incy, &stream);                                         \
    }                                                                                                        \
    GPUKERNEL_EXPORT int cublasGetVectorAsync##Suffix(Int n, Int element, const void* x, Int incx, void* y,  \
                                                      Int incy, CUstream stream) {                           \
        return copy(false, 1, n, element, x, incx, y, incy, &stream);                                        \
    }                                                                                                        \
    GPUKERNEL_EXPORT int cublasSetMatrixAsync##Suffix(Int rows, Int columns, Int element, const void* A,     \
                                                      Int lda, void* B, Int ldb, CUstream stream) {          \
        return lda < rows || ldb < rows ? INVALID_VALUE                                                      \
                                        : copy(true, rows, columns, element, A, lda, B, ldb, &stream);       \
    }                                                                                                        \
    GPUKERNEL_EXPORT int cublasGetMatrixAsync##Suffix(Int rows, Int columns, Int element, const void* A,     \
                                                      Int lda, void* B, Int ldb, CUstream stream) {          \
        return lda < rows || ldb < rows ? INVALID_VALUE                                                      \
                                        : copy(false, rows, columns, element, A, lda, B, ldb, &stream);      \
    }
GPUKERNEL_COPIES(, int)
GPUKERNEL_COPIES(_64, int64_t)

}  // namespace gpukernel::libraries::cublas
