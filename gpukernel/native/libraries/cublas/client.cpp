// cuBLAS in the user's program: each call becomes data, and travels in the order of its stream.
#include "libraries/client.h"

#include <memory>

#include "libraries/cublas/handle.h"
#include "libraries/cublas/products.h"
#include "libraries/numbers.h"

namespace gpukernel::libraries::cublas {

namespace {
constexpr uint32_t LIBRARY = library_number(CUBLAS, GPUKERNEL_MAJOR);

// A call with a handle: its words begin with the handle and how it is set, so that setting it needs no call.
class Call {
  public:
    Call(void* handle, const char* name, uint32_t function)
        : handle_(handle_of(handle)), name_(name), function_(function) {
        if (!handle_)
            status_ = NOT_INITIALIZED;
        else if (port()->current_device() != handle_->device)
            status_ = INVALID_VALUE;
        if (status_) return;
        const Settings& s = handle_->settings;
        number(static_cast<int64_t>(handle_->name));
        number(static_cast<int64_t>(Modes{s.pointer_mode, s.atomics, s.math_mode, s.multiprocessors}.word()));
        device(s.workspace);
        number(static_cast<int64_t>(s.workspace_bytes));
    }
    bool ready() const { return !status_; }
    int status() const { return status_; }

    void number(int64_t value) { words_.number(static_cast<uint64_t>(value)); }
    void device(const void* address) { words_.number(reinterpret_cast<uint64_t>(address)); }
    void scalar(const void* value, size_t bytes) {
        if (!value)
            status_ = INVALID_VALUE;
        else if (on_host())
            words_.bytes(value, bytes);
        else
            device(value);
    }
    void result(void* place, size_t bytes) {
        if (!place) status_ = INVALID_VALUE;
        if (on_host())
            result_ = place, result_bytes_ = bytes;
        else
            device(place);
    }

    int queue() {
        if (status_) return status_;
        const PortCall call = made();
        bool captured = false;
        const CUresult result = port()->queue(&call, &captured);
        if (captured) handle_->captured = true;
        return status_of(result);
    }
    int ask() {
        if (!on_host()) return queue();
        if (status_) return status_;
        int32_t status = 0;
        size_t got = 0;
        const CUresult error = libraries::ask(made(), true, name_, status, result_, result_bytes_, got);
        if (error == CUDA_SUCCESS && !status && got != result_bytes_) return INTERNAL_ERROR;
        return error == CUDA_SUCCESS ? status : status_of(error);
    }

  private:
    bool on_host() const { return handle_->settings.pointer_mode == HOST; }
    PortCall made() const {
        return {LIBRARY, function_, handle_->settings.stream, words_.data(), words_.count()};
    }

    Handle* const handle_;
    const char* const name_;
    const uint32_t function_;
    int status_ = SUCCESS;
    void* result_ = nullptr;
    size_t result_bytes_ = 0;
    Words words_;
};
}  // namespace

GPUKERNEL_EXPORT int cublasCreate_v2(void** handle) {
    if (!handle) return INVALID_VALUE;
    *handle = nullptr;
    if (!port()) return NOT_INITIALIZED;
    const int device = port()->current_device();
    if (device < 0) return NOT_INITIALIZED;
    auto own = std::make_unique<Handle>();
    own->device = device;
    own->name = port()->name();
    int32_t status = 0, version = 0;
    size_t got = 0;
    const PortCall call{LIBRARY, CREATE, nullptr, &own->name, 1};
    if (CUresult error = libraries::ask(call, false, "cublasCreate", status, &version, sizeof version, got);
        error != CUDA_SUCCESS)
        return status_of(error) == EXECUTION_FAILED ? NOT_INITIALIZED : status_of(error);
    if (status) return status;
    own->version = version;
    *handle = keep_handle(own.release());
    return SUCCESS;
}

GPUKERNEL_EXPORT int cublasDestroy_v2(void* handle) {
    Handle* const own = drop_handle(handle);
    if (!own) return NOT_INITIALIZED;
    const std::unique_ptr<Handle> end(own);
    // A graph's calls outlive the handle that they were captured with; the worker's ends with the program.
    if (own->captured || port()->current_device() != own->device) return SUCCESS;
    const PortCall call{LIBRARY, DESTROY, nullptr, &own->name, 1};
    bool captured;
    port()->queue(&call, &captured);
    return SUCCESS;
}

#include "cublas_client.inc"
#include "cublas_unsupported.inc"

}  // namespace gpukernel::libraries::cublas
