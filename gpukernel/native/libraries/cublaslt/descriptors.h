// cuBLASLt's descriptors as this package fills them: in the program, on the wire, and beside the simulated
// GPU.
//
// NVIDIA's header declares them as so many words, which programs copy and keep where they like.  Nobody but
// the library looks inside, so what stands there is ours; the worker makes the descriptors of its own library
// from the attributes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "libraries/cublas/types.h"

namespace gpukernel::libraries::cublaslt {

enum Order : int { COLUMNS = 0, ROWS = 1 };
enum Pointers : int {
    ON_HOST = 0,
    ON_DEVICE = 1,
    VECTORS = 2,
    ALPHA_VECTOR_BETA_ZERO = 3,
    ALPHA_VECTOR_BETA_HOST = 4
};
enum Epilogue : uint32_t {
    DEFAULT = 1,
    RELU = 2,
    BIAS = 4,
    DRELU = 8,
    BIAS_GRADIENT = 16,
    GELU = 32,
    DGELU = 64,
    AUX = 128,
    GRADIENT_A = 256,
    GRADIENT_B = 512,
};

struct Layout {  // 8 words
    uint32_t type, order;
    uint64_t rows, columns;
    int64_t ld;
    int32_t batches;
    uint32_t batch_mode;
    int64_t batch_step, plane;
    uint64_t rest;
};
struct Operation {   // 32 words
    uint64_t given;  // the attributes that the program has set, by number
    int32_t compute, scale, pointers, transa, transb, transc, fill;
    uint32_t epilogue;
    uint64_t bias;
    int64_t bias_step;
    uint64_t aux;
    int64_t aux_ld, aux_step, alpha_step;
    uint64_t a_scale, b_scale, c_scale, d_scale, d_largest, aux_scale, aux_largest, d_out_scale;
    int32_t multiprocessors, aux_type, bias_type, a_mode, b_mode, c_mode, d_mode, aux_mode, d_out_mode;
    int8_t fast;
    uint64_t rest[8];
};
struct Preference {  // 8 words
    uint64_t given;
    uint64_t workspace, implementations;
    uint32_t search, reductions, a_alignment, b_alignment, c_alignment, d_alignment;
    float waves;
    uint32_t rest[3];
};
struct Transformation {  // 8 words
    uint64_t given;
    int32_t scale, pointers, transa, transb;
    uint64_t rest[5];
};
struct Algorithm {  // 8 words of whoever made it
    uint64_t words[8];
};
struct Heuristic {
    Algorithm algorithm;
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
};
static_assert(sizeof(Layout) == 64 && sizeof(Operation) == 256 && sizeof(Preference) == 64 &&
              sizeof(Transformation) == 64 && sizeof(Preference) == 64 && sizeof(Heuristic) == 96);

// One attribute: its number in NVIDIA's header, where it stands, whether it is an address on the device.
struct Attribute {
    int number;
    size_t offset, bytes;
    bool address = false;
};
extern const std::span<const Attribute> layout_attributes, operation_attributes, preference_attributes,
    transformation_attributes;

// The functions of a table in worker and program, which are few.
enum Function : uint32_t { MATMUL = 0, HEURISTIC = 1, CHECK = 2, TRANSFORM = 3 };
constexpr int MOST_HEURISTICS = 16;

}  // namespace gpukernel::libraries::cublaslt
