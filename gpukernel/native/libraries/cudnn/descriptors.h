// The descriptors of cuDNN's functions outside of the backend API: in the program and beside the simulated
// GPU they are these structures, which travel as they are with each call.
#pragma once

#include <cstdint>

#include "libraries/cudnn/types.h"

namespace gpukernel::libraries::cudnn {

struct TensorLayout {
    int32_t type, rank, extent[MOST_DIMENSIONS], stride[MOST_DIMENSIONS];
};
struct FilterLayout {
    int32_t type, format, rank, extent[MOST_DIMENSIONS];
};
struct ConvolutionForm {
    int32_t rank, padding[MOST_DIMENSIONS], stride[MOST_DIMENSIONS], dilation[MOST_DIMENSIONS], mode, compute,
        groups, math, reorder;
};
struct PoolingForm {
    int32_t mode, nan, rank, window[MOST_DIMENSIONS], padding[MOST_DIMENSIONS], stride[MOST_DIMENSIONS];
};
struct ActivationForm {
    int32_t mode, nan;
    double coefficient, swish_beta;
};
struct NormalizationForm {  // across channels (LRN)
    int64_t channels;
    double alpha, beta, k;
};
struct TensorOperation {
    int32_t operation, compute, nan;
};
struct TensorReduction {
    int32_t operation, compute, nan, indices, index_type;
};
struct DropoutForm {
    double dropout;
    uint64_t states, bytes, seed;
};
struct CtcForm {
    int32_t compute, normalization, gradients, longest, version;  // of the function that set it: 7, 8 or 9
};

enum Format : int { NCHW = 0, NHWC = 1 };
constexpr int REDUCTION_NO_INDICES = 0;

// A filter's strides, by its format.
void strides_of(const FilterLayout& filter, int64_t (&strides)[MOST_DIMENSIONS]);
// Bytes of alpha and beta beside such a tensor, and of one of its elements.
size_t factor(const void* tensor);
size_t value_bytes(const void* tensor);

// Of probabilities by step, sample and symbol: the samples, and the bytes of their costs and of their
// lengths.
inline int64_t ctc_batch(const void* tensor) {
    const auto* const t = static_cast<const TensorLayout*>(tensor);
    return t && t->rank == 3 ? t->extent[1] : 0;
}
inline size_t ctc_costs(const void* tensor) {
    return static_cast<size_t>(ctc_batch(tensor)) *
           (tensor ? element_bytes(static_cast<const TensorLayout*>(tensor)->type) : 0);
}
inline size_t ctc_lengths(const void* tensor) { return static_cast<size_t>(ctc_batch(tensor)) * sizeof(int); }
// All samples' labels; -1 where a length makes no sense.
inline int64_t sum_of_lengths(const int* lengths, int64_t count) {
    int64_t sum = 0;
    for (int64_t i = 0; i < count; ++i) {
        if (lengths[i] < 0) return -1;
        sum += lengths[i];
    }
    return sum;
}
inline int64_t ctc_labels(const void* tensor, const int* lengths) {
    return lengths ? sum_of_lengths(lengths, ctc_batch(tensor)) : -1;
}

}  // namespace gpukernel::libraries::cudnn
