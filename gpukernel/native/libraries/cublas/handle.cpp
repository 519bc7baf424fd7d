// Living handles, and the names of statuses.
#include "libraries/cublas/handle.h"

#include "libraries/living.h"

namespace gpukernel::libraries {
const int NOT_SUPPORTED_STATUS = cublas::NOT_SUPPORTED;
}

namespace gpukernel::libraries::cublas {

Handle* handle_of(void* handle) { return LivingHandles<Handle>::all().find(handle); }
void* keep_handle(Handle* handle) { return LivingHandles<Handle>::all().keep(handle); }
Handle* drop_handle(void* handle) { return LivingHandles<Handle>::all().drop(handle); }

const char* status_name(int status) {
    switch (status) {
        case SUCCESS:
            return "CUBLAS_STATUS_SUCCESS";
        case NOT_INITIALIZED:
            return "CUBLAS_STATUS_NOT_INITIALIZED";
        case ALLOC_FAILED:
            return "CUBLAS_STATUS_ALLOC_FAILED";
        case INVALID_VALUE:
            return "CUBLAS_STATUS_INVALID_VALUE";
        case ARCH_MISMATCH:
            return "CUBLAS_STATUS_ARCH_MISMATCH";
        case MAPPING_ERROR:
            return "CUBLAS_STATUS_MAPPING_ERROR";
        case EXECUTION_FAILED:
            return "CUBLAS_STATUS_EXECUTION_FAILED";
        case INTERNAL_ERROR:
            return "CUBLAS_STATUS_INTERNAL_ERROR";
        case NOT_SUPPORTED:
            return "CUBLAS_STATUS_NOT_SUPPORTED";
        case LICENSE_ERROR:
            return "CUBLAS_STATUS_LICENSE_ERROR";
        default:
            return "UNKNOWN CUBLAS STATUS";
    }
}
const char* status_text(int status) {
    switch (status) {
        case SUCCESS:
            return "success";
        case NOT_INITIALIZED:
            return "the library was not initialized";
        case ALLOC_FAILED:
            return "memory could not be allocated";
        case INVALID_VALUE:
            return "a parameter has a value that the function does not take";
        case ARCH_MISMATCH:
            return "the device lacks what the function needs";
        case EXECUTION_FAILED:
            return "the function failed on the device";
        case NOT_SUPPORTED:
            return "the function is not supported";
        default:
            return status_name(status);
    }
}

// What a driver's error is among the library's.
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
            return INVALID_VALUE;
        case CUDA_ERROR_NOT_INITIALIZED:
        case CUDA_ERROR_INVALID_CONTEXT:
        case CUDA_ERROR_NO_DEVICE:
            return NOT_INITIALIZED;
        default:
            return EXECUTION_FAILED;
    }
}

int property(int type, int major, int* value) {
    if (!value || type < 0 || type > 2) return INVALID_VALUE;
    const int version = version_of(major);
    *value = type == 0 ? version / 10000 : type == 1 ? version / 100 % 100 : version % 100;
    return SUCCESS;
}

}  // namespace gpukernel::libraries::cublas
