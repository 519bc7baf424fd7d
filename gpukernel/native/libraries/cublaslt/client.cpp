// cuBLASLt in the user's program.  Descriptors are the program's own memory and travel, as they are, with
// each call.
//
// A handle has no settings, and programs hand over one of cuBLAS in its place.  So whatever handle a call
// has, it goes to one object of the current device, which is made at the first and ends with the program.
#include "libraries/client.h"

#include <map>
#include <mutex>

#include "libraries/cublas/handle.h"
#include "libraries/cublaslt/descriptors.h"
#include "libraries/numbers.h"

namespace gpukernel::libraries::cublaslt {

using namespace cublas;

namespace {
constexpr uint32_t LIBRARY = library_number(CUBLASLT, GPUKERNEL_MAJOR);

// The worker's number of the current device's object.
int object_here(uint64_t& name) {
    static std::mutex* const mutex = new std::mutex;
    static auto* const all = new std::map<int, uint64_t>;
    if (!port()) return NOT_INITIALIZED;
    const int device = port()->current_device();
    if (device < 0) return NOT_INITIALIZED;
    std::lock_guard lock(*mutex);
    if (const auto it = all->find(device); it != all->end()) return name = it->second, SUCCESS;
    const uint64_t fresh = port()->name();
    int32_t status = 0, version = 0;
    size_t got = 0;
    const PortCall call{LIBRARY, CREATE, nullptr, &fresh, 1};
    const CUresult error = ask(call, false, "cublasLtCreate", status, &version, sizeof version, got);
    if (error != CUDA_SUCCESS || status) return error == CUDA_SUCCESS ? status : NOT_INITIALIZED;
    name = (*all)[device] = fresh;
    return SUCCESS;
}

class Call {
  public:
    explicit Call(void* handle) {
        uint64_t name = 0;
        status_ = handle ? object_here(name) : NOT_INITIALIZED;
        words_.number(name);
    }
    int status() const { return status_; }
    template <class Descriptor>
    void descriptor(const Descriptor* given) {
        static constexpr Descriptor none{};
        words_.bytes(given ? given : &none, sizeof *given);
    }
    void number(uint64_t value) { words_.number(value); }
    void device(const void* address) { words_.number(reinterpret_cast<uint64_t>(address)); }
    void scalar(bool on_host, const void* value, int type) {
        if (!on_host) return device(value);
        if (value)
            words_.bytes(value, data_bytes(type));
        else
            status_ = INVALID_VALUE;
    }
    int queue(Function function, CUstream stream) {
        if (status_) return status_;
        const PortCall call{LIBRARY, function, stream, words_.data(), words_.count()};
        bool captured;
        return status_of(port()->queue(&call, &captured));
    }
    int ask(Function function, const char* name, Heuristic* results, int most, int& count) {
        if (status_) return status_;
        Heuristic found[MOST_HEURISTICS] = {};
        int32_t status = 0;
        size_t got = 0;
        const PortCall call{LIBRARY, function, nullptr, words_.data(), words_.count()};
        const CUresult error = ask_once(call, name, status, found, sizeof found, got);
        if (error != CUDA_SUCCESS || status) return error == CUDA_SUCCESS ? status : status_of(error);
        count = std::min(static_cast<int>(got / sizeof *found), most);
        std::copy_n(found, count, results);
        return SUCCESS;
    }

  private:
    int status_ = SUCCESS;
    Words words_;
};
bool alpha_on_host(int pointers) { return pointers == ON_HOST; }
bool beta_on_host(int pointers) { return pointers == ON_HOST || pointers == ALPHA_VECTOR_BETA_HOST; }
}  // namespace

GPUKERNEL_EXPORT int cublasLtCreate(void** handle) {
    if (!handle) return INVALID_VALUE;
    static char token;
    uint64_t name;
    const int status = object_here(name);
    *handle = status ? nullptr : &token;
    return status;
}
GPUKERNEL_EXPORT int cublasLtDestroy(void* handle) { return handle ? SUCCESS : NOT_INITIALIZED; }

GPUKERNEL_EXPORT int cublasLtMatmul(void* handle, const Operation* operation, const void* alpha,
                                    const void* A, const Layout* a, const void* B, const Layout* b,
                                    const void* beta, const void* C, const Layout* c, void* D,
                                    const Layout* d, const Algorithm* algorithm, void* workspace,
                                    size_t bytes, CUstream stream) {
    if (!operation || !a || !b || !c || !d) return INVALID_VALUE;
    Call call(handle);
    if (call.status()) return call.status();
    call.descriptor(operation);
    for (const Layout* layout : {a, b, c, d}) call.descriptor(layout);
    call.number(algorithm != nullptr);
    call.descriptor(algorithm);
    call.number(bytes);
    call.device(workspace);
    for (const void* matrix : {A, B, C, static_cast<const void*>(D)}) call.device(matrix);
    call.scalar(alpha_on_host(operation->pointers), alpha, operation->scale);
    if (operation->pointers != ALPHA_VECTOR_BETA_ZERO)
        call.scalar(beta_on_host(operation->pointers), beta, operation->scale);
    return call.queue(MATMUL, stream);
}

GPUKERNEL_EXPORT int cublasLtMatrixTransform(void* handle, const Transformation* transformation,
                                             const void* alpha, const void* A, const Layout* a,
                                             const void* beta, const void* B, const Layout* b, void* C,
                                             const Layout* c, CUstream stream) {
    if (!transformation || !a || !c || transformation->pointers < ON_HOST ||
        transformation->pointers > ON_DEVICE)
        return INVALID_VALUE;
    Call call(handle);
    if (call.status()) return call.status();
    call.descriptor(transformation);
    call.descriptor(a);
    call.number(b != nullptr);
    call.descriptor(b);
    call.descriptor(c);
    for (const void* matrix : {A, B, static_cast<const void*>(C)}) call.device(matrix);
    const bool on_host = transformation->pointers == ON_HOST;
    static constexpr double zero[2] = {};
    call.scalar(on_host, alpha, transformation->scale);
    call.scalar(on_host, on_host && !beta && !b ? zero : beta, transformation->scale);
    return call.queue(TRANSFORM, stream);
}

GPUKERNEL_EXPORT int cublasLtMatmulAlgoGetHeuristic(void* handle, const Operation* operation, const Layout* a,
                                                    const Layout* b, const Layout* c, const Layout* d,
                                                    const Preference* preference, int most,
                                                    Heuristic* results, int* count) {
    if (!operation || !a || !b || !c || !d || !preference || most <= 0 || !results || !count)
        return INVALID_VALUE;
    *count = 0;
    Call call(handle);
    if (call.status()) return call.status();
    call.descriptor(operation);
    for (const Layout* layout : {a, b, c, d}) call.descriptor(layout);
    call.descriptor(preference);
    call.number(static_cast<uint64_t>(std::min(most, MOST_HEURISTICS)));
    return call.ask(HEURISTIC, "cublasLtMatmulAlgoGetHeuristic", results, most, *count);
}

GPUKERNEL_EXPORT int cublasLtMatmulAlgoCheck(void* handle, const Operation* operation, const Layout* a,
                                             const Layout* b, const Layout* c, const Layout* d,
                                             const Algorithm* algorithm, Heuristic* result) {
    if (!operation || !a || !b || !c || !d || !algorithm || !result) return INVALID_VALUE;
    Call call(handle);
    if (call.status()) return call.status();
    call.descriptor(operation);
    for (const Layout* layout : {a, b, c, d}) call.descriptor(layout);
    call.descriptor(algorithm);
    int count = 0;
    return call.ask(CHECK, "cublasLtMatmulAlgoCheck", result, 1, count);
}

#include "cublaslt_unsupported.inc"

}  // namespace gpukernel::libraries::cublaslt
