// cuDNN in the user's program: handles and versions.  Every operation answers "not supported", by name.
#include "libraries/client.h"

#include <cstdint>
#include <mutex>
#include <set>
#include <string>

namespace gpukernel::libraries {
const int NOT_SUPPORTED_STATUS = 3000;  // CUDNN_STATUS_NOT_SUPPORTED
}

namespace gpukernel::libraries::cudnn {

namespace {
// cudnn_version.h's numbers of the release whose names this library exports.
constexpr int MAJOR_VERSION = 9, MINOR_VERSION = 10, PATCH_LEVEL = 2;

enum Status { SUCCESS = 0, NOT_INITIALIZED = 1001, BAD_PARAM = 2000, NOT_SUPPORTED = 3000 };

struct Handle {
    void* stream = nullptr;
};
struct Handles {
    std::mutex mutex;
    std::set<Handle*> living;
};
Handles& handles() {
    static Handles* const instance = new Handles;  // threads may be inside at exit
    return *instance;
}
Handle* handle_of(void* handle) {
    std::lock_guard lock(handles().mutex);
    const auto it = handles().living.find(static_cast<Handle*>(handle));
    return it == handles().living.end() ? nullptr : *it;
}
}  // namespace

GPUKERNEL_EXPORT int cudnnCreate(void** handle) {
    if (!handle) return BAD_PARAM;
    *handle = nullptr;
    if (!port() || port()->current_device() < 0) return NOT_INITIALIZED;
    auto* const own = new Handle;
    std::lock_guard lock(handles().mutex);
    handles().living.insert(own);
    *handle = own;
    return SUCCESS;
}

GPUKERNEL_EXPORT int cudnnDestroy(void* handle) {
    std::lock_guard lock(handles().mutex);
    auto* const own = static_cast<Handle*>(handle);
    if (!handles().living.erase(own)) return NOT_INITIALIZED;
    delete own;
    return SUCCESS;
}

GPUKERNEL_EXPORT int cudnnSetStream(void* handle, void* stream) {
    Handle* const own = handle_of(handle);
    if (!own) return BAD_PARAM;
    own->stream = stream;
    return SUCCESS;
}

GPUKERNEL_EXPORT int cudnnGetStream(void* handle, void** stream) {
    Handle* const own = handle_of(handle);
    if (!own || !stream) return BAD_PARAM;
    *stream = own->stream;
    return SUCCESS;
}

GPUKERNEL_EXPORT size_t cudnnGetVersion() {
    return MAJOR_VERSION * 10000 + MINOR_VERSION * 100 + PATCH_LEVEL;
}
GPUKERNEL_EXPORT size_t cudnnGetMaxDeviceVersion() { return 1210; }
GPUKERNEL_EXPORT size_t cudnnGetCudartVersion() { return 12090; }

GPUKERNEL_EXPORT int cudnnGetProperty(int type, int* value) {
    constexpr int versions[] = {MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL};
    if (!value || type < 0 || type > 2) return BAD_PARAM;
    *value = versions[type];
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
        case NOT_SUPPORTED:
            return "CUDNN_STATUS_NOT_SUPPORTED";
        default:
            return "CUDNN_UNKNOWN_STATUS";
    }
}

GPUKERNEL_EXPORT void cudnnGetLastErrorString(char* message, size_t size) {
    if (!message || !size) return;
    const std::string sentence = "cuDNN's operations are not supported on a slice";
    message[sentence.copy(message, size - 1)] = 0;
}

GPUKERNEL_EXPORT int cudnnGraphVersionCheck() { return SUCCESS; }
GPUKERNEL_EXPORT int cudnnOpsVersionCheck() { return SUCCESS; }
GPUKERNEL_EXPORT int cudnnCnnVersionCheck() { return SUCCESS; }
GPUKERNEL_EXPORT int cudnnAdvVersionCheck() { return SUCCESS; }
GPUKERNEL_EXPORT int cudnnSetCallback(unsigned, void*, void*) { return SUCCESS; }
GPUKERNEL_EXPORT int cudnnGetCallback(unsigned*, void**, void**) { return NOT_SUPPORTED; }

#include "cudnn_unsupported.inc"

}  // namespace gpukernel::libraries::cudnn
