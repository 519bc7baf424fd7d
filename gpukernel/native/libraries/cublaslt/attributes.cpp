// The attributes of cuBLASLt's descriptors; the numbers are those of NVIDIA's public cublasLt.h.
#include "libraries/cublaslt/descriptors.h"

namespace gpukernel::libraries::cublaslt {

namespace {
#define FIELD(structure, number, field) {number, offsetof(structure, field), sizeof(structure::field)}
#define ADDRESS(structure, number, field) {number, offsetof(structure, field), sizeof(structure::field), true}
constexpr Attribute layout[] = {
    FIELD(Layout, 0, type),       FIELD(Layout, 1, order), FIELD(Layout, 2, rows),
    FIELD(Layout, 3, columns),    FIELD(Layout, 4, ld),    FIELD(Layout, 5, batches),
    FIELD(Layout, 6, batch_step), FIELD(Layout, 7, plane), FIELD(Layout, 8, batch_mode),
};
constexpr Attribute operation[] = {
    FIELD(Operation, 0, compute),
    FIELD(Operation, 1, scale),
    FIELD(Operation, 2, pointers),
    FIELD(Operation, 3, transa),
    FIELD(Operation, 4, transb),
    FIELD(Operation, 5, transc),
    FIELD(Operation, 6, fill),
    FIELD(Operation, 7, epilogue),
    ADDRESS(Operation, 8, bias),
    FIELD(Operation, 10, bias_step),
    ADDRESS(Operation, 11, aux),
    FIELD(Operation, 12, aux_ld),
    FIELD(Operation, 13, aux_step),
    FIELD(Operation, 14, alpha_step),
    FIELD(Operation, 15, multiprocessors),
    ADDRESS(Operation, 17, a_scale),
    ADDRESS(Operation, 18, b_scale),
    ADDRESS(Operation, 19, c_scale),
    ADDRESS(Operation, 20, d_scale),
    ADDRESS(Operation, 21, d_largest),
    FIELD(Operation, 22, aux_type),
    ADDRESS(Operation, 23, aux_scale),
    ADDRESS(Operation, 24, aux_largest),
    FIELD(Operation, 25, fast),
    FIELD(Operation, 26, bias_type),
    FIELD(Operation, 31, a_mode),
    FIELD(Operation, 32, b_mode),
    FIELD(Operation, 33, c_mode),
    FIELD(Operation, 34, d_mode),
    FIELD(Operation, 35, aux_mode),
    ADDRESS(Operation, 36, d_out_scale),
    FIELD(Operation, 37, d_out_mode),
};
constexpr Attribute preference[] = {
    FIELD(Preference, 0, search),           FIELD(Preference, 1, workspace),
    FIELD(Preference, 3, reductions),       FIELD(Preference, 5, a_alignment),
    FIELD(Preference, 6, b_alignment),      FIELD(Preference, 7, c_alignment),
    FIELD(Preference, 8, d_alignment),      FIELD(Preference, 9, waves),
    FIELD(Preference, 12, implementations),
};
constexpr Attribute transformation[] = {
    FIELD(Transformation, 0, scale),
    FIELD(Transformation, 1, pointers),
    FIELD(Transformation, 2, transa),
    FIELD(Transformation, 3, transb),
};
#undef FIELD
#undef ADDRESS
}  // namespace

const std::span<const Attribute> layout_attributes = layout, operation_attributes = operation,
                                 preference_attributes = preference,
                                 transformation_attributes = transformation;

}  // namespace gpukernel::libraries::cublaslt
