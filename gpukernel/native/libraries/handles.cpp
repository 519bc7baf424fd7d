#include "libraries/handles.h"

#include <mutex>
#include <unordered_set>

namespace gpukernel::libraries {

const int NOT_SUPPORTED_STATUS = STATUSES.not_supported;

namespace {
struct Living {
    std::mutex mutex;
    std::unordered_set<void*> all;
};
Living& living() {
    static Living* const only = new Living;  // threads may be inside at exit
    return *only;
}
}  // namespace

StreamHandle* handle_of(void* handle) {
    std::lock_guard lock(living().mutex);
    return living().all.contains(handle) ? static_cast<StreamHandle*>(handle) : nullptr;
}
void* keep_handle(StreamHandle* handle) {
    std::lock_guard lock(living().mutex);
    living().all.insert(handle);
    return handle;
}
StreamHandle* drop_handle(void* handle) {
    std::lock_guard lock(living().mutex);
    return living().all.erase(handle) ? static_cast<StreamHandle*>(handle) : nullptr;
}

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
