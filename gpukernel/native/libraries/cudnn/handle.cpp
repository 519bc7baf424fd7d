// Living handles, versions, the names of statuses: what needs no device.
#include "libraries/cudnn/handle.h"

#include <string>

#include "libraries/living.h"

namespace gpukernel::libraries {
const int NOT_SUPPORTED_STATUS = cudnn::NOT_SUPPORTED;
}

namespace gpukernel::libraries::cudnn {

namespace {
thread_local std::string last_error;
}  // namespace

Handle* handle_of(void* handle) { return LivingHandles<Handle>::all().find(handle); }
void* keep_handle(Handle* handle) { return LivingHandles<Handle>::all().keep(handle); }
Handle* drop_handle(void* handle) { return LivingHandles<Handle>::all().drop(handle); }

int status_of(CUresult result) {
    switch (result) {
        case CUDA_SUCCESS:
            return SUCCESS;
        case CUDA_ERROR_OUT_OF_MEMORY:
            return ALLOC_FAILED;
        case CUDA_ERROR_NOT_SUPPORTED:
            return NOT_SUPPORTED;
        case CUDA_ERROR_INVALID_VALUE:
        case CUDA_ERROR_INVALID_HANDLE:
            return BAD_PARAM;
        case CUDA_ERROR_NOT_INITIALIZED:
        case CUDA_ERROR_INVALID_CONTEXT:
        case CUDA_ERROR_NO_DEVICE:
            return NOT_INITIALIZED;
        default:
            return EXECUTION_FAILED;
    }
}

int refused(const char* function, const char* what) {
    last_error = std::string(function) + ": " + what + " is not supported on a slice";
    complain(last_error);
    return NOT_SUPPORTED;
}

GPUKERNEL_EXPORT int cudnnSetStream(void* handle, void* stream) {
    Handle* const own = handle_of(handle);
    if (!own) return BAD_PARAM;
    own->stream = static_cast<CUstream>(stream);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnGetStream(void* handle, void** stream) {
    Handle* const own = handle_of(handle);
    if (!own || !stream) return BAD_PARAM;
    *stream = own->stream;
    return SUCCESS;
}

GPUKERNEL_EXPORT size_t cudnnGetVersion() { return version(); }
GPUKERNEL_EXPORT size_t cudnnGetMaxDeviceVersion() { return 1210; }
GPUKERNEL_EXPORT size_t cudnnGetCudartVersion() { return 12090; }
GPUKERNEL_EXPORT int cudnnGetProperty(int type, int* value) {
    if (!value || type < 0 || type > 2) return BAD_PARAM;
    const auto number = static_cast<int>(version());
    *value = type == 0 ? number / 10000 : type == 1 ? number / 100 % 100 : number % 100;
    return SUCCESS;
}

GPUKERNEL_EXPORT const char* cudnnGetErrorString(int status) {
    switch (status) {
        case SUCCESS:
            return "CUDNN_STATUS_SUCCESS";
        case NOT_INITIALIZED:
            return "CUDNN_STATUS_NOT_INITIALIZED";
        case BAD_PARAM:
            return "CUDNN_STATUS_BAD_PARAM";
        case NULL_POINTER:
            return "CUDNN_STATUS_BAD_PARAM_NULL_POINTER";
        case NOT_FINALIZED:
            return "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
        case NOT_SUPPORTED:
            return "CUDNN_STATUS_NOT_SUPPORTED";
        case INTERNAL_ERROR:
            return "CUDNN_STATUS_INTERNAL_ERROR";
        case ALLOC_FAILED:
            return "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED";
        case EXECUTION_FAILED:
            return "CUDNN_STATUS_EXECUTION_FAILED";
        default:
            return "CUDNN_UNKNOWN_STATUS";
    }
}
GPUKERNEL_EXPORT void cudnnGetLastErrorString(char* message, size_t size) {
    if (message && size) message[last_error.copy(message, size - 1)] = 0;
}

GPUKERNEL_EXPORT int cudnnGraphVersionCheck() { return SUCCESS; }
GPUKERNEL_EXPORT int cudnnOpsVersionCheck() { return SUCCESS; }
GPUKERNEL_EXPORT int cudnnCnnVersionCheck() { return SUCCESS; }
GPUKERNEL_EXPORT int cudnnAdvVersionCheck() { return SUCCESS; }
// Nothing is logged.
GPUKERNEL_EXPORT int cudnnSetCallback(unsigned, void*, void*) { return SUCCESS; }
GPUKERNEL_EXPORT int cudnnGetCallback(unsigned* mask, void** data, void** function) {
    if (!mask || !data || !function) return BAD_PARAM;
    *mask = 0, *data = *function = nullptr;
    return SUCCESS;
}

}  // namespace gpukernel::libraries::cudnn
