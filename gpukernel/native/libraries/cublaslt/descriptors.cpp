// What cuBLASLt answers without the device: descriptors and their attributes, versions, names of errors.
#include "libraries/cublaslt/descriptors.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "libraries/cublas/handle.h"
#include "libraries/library.h"

namespace gpukernel::libraries::cublaslt {

using namespace cublas;

namespace {
const Attribute* find(std::span<const Attribute> all, int number) {
    const auto it =
        std::find_if(all.begin(), all.end(), [number](const Attribute& one) { return one.number == number; });
    return it == all.end() ? nullptr : &*it;
}
int set(std::span<const Attribute> all, void* descriptor, uint64_t* given, int number, const void* from,
        size_t bytes, const char* what) {
    if (!descriptor || !from) return INVALID_VALUE;
    const Attribute* const its = find(all, number);
    if (!its) {
        complain(std::string(what) + ": attribute " + std::to_string(number) +
                 " is not supported on a slice");
        return NOT_SUPPORTED;
    }
    if (bytes != its->bytes) return INVALID_VALUE;
    std::memcpy(static_cast<char*>(descriptor) + its->offset, from, bytes);
    if (given) *given |= uint64_t{1} << number;
    return SUCCESS;
}
int get(std::span<const Attribute> all, const void* descriptor, int number, void* to, size_t bytes,
        size_t* written) {
    const Attribute* const its = find(all, number);
    if (!descriptor || !its || (!bytes && !written)) return INVALID_VALUE;
    if (written) *written = its->bytes;
    if (!bytes) return SUCCESS;
    if (!to || bytes != its->bytes) return INVALID_VALUE;
    std::memcpy(to, static_cast<const char*>(descriptor) + its->offset, bytes);
    return SUCCESS;
}

template <class Descriptor, class... Values>
int create(Descriptor** out, int (*begin)(Descriptor*, size_t, Values...), Values... values) {
    if (!out) return INVALID_VALUE;
    *out = new Descriptor;
    return begin(*out, sizeof **out, values...);
}
template <class Descriptor>
int destroy(Descriptor* descriptor) {
    delete descriptor;
    return SUCCESS;
}
template <class Descriptor>
int cleared(Descriptor* descriptor, size_t bytes) {
    if (!descriptor || bytes < sizeof *descriptor) return INVALID_VALUE;
    std::memset(descriptor, 0, sizeof *descriptor);
    return SUCCESS;
}
}  // namespace

GPUKERNEL_EXPORT int cublasLtMatrixLayoutInit_internal(Layout* layout, size_t bytes, int type, uint64_t rows,
                                                       uint64_t columns, int64_t ld) {
    if (const int status = cleared(layout, bytes)) return status;
    layout->type = static_cast<uint32_t>(type), layout->rows = rows, layout->columns = columns,
    layout->ld = ld;
    layout->batches = 1;
    return SUCCESS;
}
GPUKERNEL_EXPORT int cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t columns,
                                                int64_t ld) {
    return create(layout, cublasLtMatrixLayoutInit_internal, type, rows, columns, ld);
}
GPUKERNEL_EXPORT int cublasLtMatrixLayoutDestroy(Layout* layout) { return destroy(layout); }
GPUKERNEL_EXPORT int cublasLtMatrixLayoutSetAttribute(Layout* layout, int number, const void* from,
                                                      size_t bytes) {
    return set(layout_attributes, layout, nullptr, number, from, bytes, "cublasLtMatrixLayoutSetAttribute");
}
GPUKERNEL_EXPORT int cublasLtMatrixLayoutGetAttribute(const Layout* layout, int number, void* to,
                                                      size_t bytes, size_t* written) {
    return get(layout_attributes, layout, number, to, bytes, written);
}

GPUKERNEL_EXPORT int cublasLtMatmulDescInit_internal(Operation* operation, size_t bytes, int compute,
                                                     int scale) {
    if (const int status = cleared(operation, bytes)) return status;
    operation->compute = compute, operation->scale = scale;
    operation->fill = 2, operation->epilogue = DEFAULT;  // the whole matrix
    operation->aux_type = operation->bias_type = -1;     // those of D
    return SUCCESS;
}
GPUKERNEL_EXPORT int cublasLtMatmulDescCreate(Operation** operation, int compute, int scale) {
    return create(operation, cublasLtMatmulDescInit_internal, compute, scale);
}
GPUKERNEL_EXPORT int cublasLtMatmulDescDestroy(Operation* operation) { return destroy(operation); }
GPUKERNEL_EXPORT int cublasLtMatmulDescSetAttribute(Operation* operation, int number, const void* from,
                                                    size_t bytes) {
    return set(operation_attributes, operation, operation ? &operation->given : nullptr, number, from, bytes,
               "cublasLtMatmulDescSetAttribute");
}
GPUKERNEL_EXPORT int cublasLtMatmulDescGetAttribute(const Operation* operation, int number, void* to,
                                                    size_t bytes, size_t* written) {
    return get(operation_attributes, operation, number, to, bytes, written);
}

GPUKERNEL_EXPORT int cublasLtMatmulPreferenceInit_internal(Preference* preference, size_t bytes) {
    if (const int status = cleared(preference, bytes)) return status;
    preference->reductions = 7, preference->implementations = ~uint64_t{0};
    preference->a_alignment = preference->b_alignment = preference->c_alignment = preference->d_alignment =
        256;
    return SUCCESS;
}
GPUKERNEL_EXPORT int cublasLtMatmulPreferenceCreate(Preference** preference) {
    return create(preference, cublasLtMatmulPreferenceInit_internal);
}
GPUKERNEL_EXPORT int cublasLtMatmulPreferenceDestroy(Preference* preference) { return destroy(preference); }
GPUKERNEL_EXPORT int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int number,
                                                          const void* from, size_t bytes) {
    return set(preference_attributes, preference, preference ? &preference->given : nullptr, number, from,
               bytes, "cublasLtMatmulPreferenceSetAttribute");
}
GPUKERNEL_EXPORT int cublasLtMatmulPreferenceGetAttribute(const Preference* preference, int number, void* to,
                                                          size_t bytes, size_t* written) {
    return get(preference_attributes, preference, number, to, bytes, written);
}

GPUKERNEL_EXPORT int cublasLtMatrixTransformDescInit_internal(Transformation* transformation, size_t bytes,
                                                              int scale) {
    if (const int status = cleared(transformation, bytes)) return status;
    transformation->scale = scale;
    return SUCCESS;
}
GPUKERNEL_EXPORT int cublasLtMatrixTransformDescCreate(Transformation** transformation, int scale) {
    return create(transformation, cublasLtMatrixTransformDescInit_internal, scale);
}
GPUKERNEL_EXPORT int cublasLtMatrixTransformDescDestroy(Transformation* transformation) {
    return destroy(transformation);
}
GPUKERNEL_EXPORT int cublasLtMatrixTransformDescSetAttribute(Transformation* transformation, int number,
                                                             const void* from, size_t bytes) {
    return set(transformation_attributes, transformation, transformation ? &transformation->given : nullptr,
               number, from, bytes, "cublasLtMatrixTransformDescSetAttribute");
}
GPUKERNEL_EXPORT int cublasLtMatrixTransformDescGetAttribute(const Transformation* transformation, int number,
                                                             void* to, size_t bytes, size_t* written) {
    return get(transformation_attributes, transformation, number, to, bytes, written);
}

GPUKERNEL_EXPORT size_t cublasLtGetVersion() { return static_cast<size_t>(version_of(GPUKERNEL_MAJOR)); }
GPUKERNEL_EXPORT size_t cublasLtGetCudartVersion() { return GPUKERNEL_MAJOR * 1000; }
GPUKERNEL_EXPORT int cublasLtGetProperty(int type, int* value) {
    return property(type, GPUKERNEL_MAJOR, value);
}
GPUKERNEL_EXPORT const char* cublasLtGetStatusName(int status) { return status_name(status); }
GPUKERNEL_EXPORT const char* cublasLtGetStatusString(int status) { return status_text(status); }
// There is no cache of heuristics, and nothing is logged.
GPUKERNEL_EXPORT int cublasLtHeuristicsCacheGetCapacity(size_t* capacity) {
    return capacity ? (*capacity = 0, SUCCESS) : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cublasLtHeuristicsCacheSetCapacity(size_t) { return SUCCESS; }
GPUKERNEL_EXPORT int cublasLtLoggerSetCallback(void*) { return SUCCESS; }
GPUKERNEL_EXPORT int cublasLtLoggerSetFile(FILE*) { return SUCCESS; }
GPUKERNEL_EXPORT int cublasLtLoggerOpenFile(const char*) { return SUCCESS; }
GPUKERNEL_EXPORT int cublasLtLoggerSetLevel(int) { return SUCCESS; }
GPUKERNEL_EXPORT int cublasLtLoggerSetMask(int) { return SUCCESS; }
GPUKERNEL_EXPORT int cublasLtLoggerForceDisable() { return SUCCESS; }

}  // namespace gpukernel::libraries::cublaslt
