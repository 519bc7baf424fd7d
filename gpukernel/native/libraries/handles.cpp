#include "libraries/handles.h"

#include "libraries/living.h"

namespace gpukernel::libraries {

const int NOT_SUPPORTED_STATUS = STATUSES.not_supported;

StreamHandle* handle_of(void* handle) { return LivingHandles<StreamHandle>::all().find(handle); }
void* keep_handle(StreamHandle* handle) { return LivingHandles<StreamHandle>::all().keep(handle); }
StreamHandle* drop_handle(void* handle) { return LivingHandles<StreamHandle>::all().drop(handle); }

int status_of(CUresult result) {
    switch (result) {
        case CUDA_SUCCESS:
            return 0;
        case CUDA_ERROR_OUT_OF_MEMORY:
            return STATUSES.alloc_failed;
        case CUDA_ERROR_NOT_SUPPORTED:
            return STATUSES.not_supported;
        case CUDA_ERROR_INVALID_VALUE:
        case CUDA_ERROR_INVALID_HANDLE:
            return STATUSES.invalid_value;
        case CUDA_ERROR_NOT_INITIALIZED:
        case CUDA_ERROR_INVALID_CONTEXT:
        case CUDA_ERROR_NO_DEVICE:
            return STATUSES.not_initialized;
        default:
            return STATUSES.execution_failed;
    }
}

}  // namespace gpukernel::libraries
