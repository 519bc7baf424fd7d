// Descriptors are made, filled, and read: what needs no device.
#include "libraries/cudnn/descriptors.h"

#include <algorithm>

#include "libraries/cudnn/handle.h"

namespace gpukernel::libraries::cudnn {

namespace {
template <class Form>
int create(Form** form) {
    if (!form) return BAD_PARAM;
    *form = new Form{};
    return SUCCESS;
}
template <class Form>
int destroy(Form* form) {
    delete form;
    return SUCCESS;
}
template <class To, class From>
void give(To* to, From value) {
    if (to) *to = static_cast<To>(value);
}
void give(int* to, const int32_t* from, int count) {
    if (to) std::copy_n(from, count, to);
}

int fill(TensorLayout* tensor, int type, int rank, const int* extents, const int* strides) {
    if (!tensor || !extents || rank < 1 || rank > MOST_DIMENSIONS) return BAD_PARAM;
    if (!element_bytes(type)) return NOT_SUPPORTED;
    int64_t volume = 1;
    for (int i = rank - 1; i >= 0; --i) {
        if (extents[i] <= 0 || (strides && strides[i] < 0) || volume > INT32_MAX) return BAD_PARAM;
        tensor->extent[i] = extents[i];
        tensor->stride[i] = strides ? strides[i] : static_cast<int>(volume);
        volume *= extents[i];
    }
    tensor->type = type, tensor->rank = rank;
    return SUCCESS;
}
int fill(FilterLayout* filter, int type, int format, int rank, const int* extents) {
    if (!filter || !extents || rank < 3 || rank > MOST_DIMENSIONS) return BAD_PARAM;
    if (!element_bytes(type) || (format != NCHW && format != NHWC)) return NOT_SUPPORTED;
    if (std::any_of(extents, extents + rank, [](int extent) { return extent <= 0; })) return BAD_PARAM;
    filter->type = type, filter->format = format, filter->rank = rank;
    std::copy_n(extents, rank, filter->extent);
    return SUCCESS;
}
int fill(ConvolutionForm* form, int rank, const int* padding, const int* strides, const int* dilations,
         int mode, int compute) {
    if (!form || !padding || !strides || !dilations || rank < 1 || rank > MOST_DIMENSIONS - 2)
        return BAD_PARAM;
    for (int i = 0; i < rank; ++i) {
        if (padding[i] < 0 || strides[i] <= 0 || dilations[i] <= 0) return BAD_PARAM;
        form->padding[i] = padding[i], form->stride[i] = strides[i], form->dilation[i] = dilations[i];
    }
    form->rank = rank, form->mode = mode, form->compute = compute;
    form->groups = std::max(form->groups, 1);
    return SUCCESS;
}
int fill(PoolingForm* form, int mode, int nan, int rank, const int* window, const int* padding,
         const int* strides) {
    if (!form || !window || !padding || !strides || rank < 1 || rank > MOST_DIMENSIONS - 2) return BAD_PARAM;
    for (int i = 0; i < rank; ++i) {
        if (window[i] <= 0 || padding[i] < 0 || strides[i] <= 0) return BAD_PARAM;
        form->window[i] = window[i], form->padding[i] = padding[i], form->stride[i] = strides[i];
    }
    form->mode = mode, form->nan = nan, form->rank = rank;
    return SUCCESS;
}
}  // namespace

void strides_of(const FilterLayout& filter, int64_t (&strides)[MOST_DIMENSIONS]) {
    int64_t volume = 1;
    const auto next = [&](int i) { strides[i] = volume, volume *= filter.extent[i]; };
    if (filter.format == NHWC) next(1);
    for (int i = filter.rank - 1; i >= 2; --i) next(i);
    if (filter.format != NHWC) next(1);
    next(0);
}

size_t factor(const void* tensor) {
    return factor_bytes(tensor ? static_cast<const TensorLayout*>(tensor)->type : FLOAT);
}

size_t value_bytes(const void* tensor) {
    return tensor ? element_bytes(static_cast<const TensorLayout*>(tensor)->type) : 0;
}

#define CREATE_AND_DESTROY(name, Form)                                                       \
    GPUKERNEL_EXPORT int cudnnCreate##name##Descriptor(Form** form) { return create(form); } \
    GPUKERNEL_EXPORT int cudnnDestroy##name##Descriptor(Form* form) { return destroy(form); }
CREATE_AND_DESTROY(Tensor, TensorLayout)
CREATE_AND_DESTROY(Filter, FilterLayout)
CREATE_AND_DESTROY(Convolution, ConvolutionForm)
CREATE_AND_DESTROY(Pooling, PoolingForm)
CREATE_AND_DESTROY(Activation, ActivationForm)
CREATE_AND_DESTROY(LRN, NormalizationForm)
CREATE_AND_DESTROY(OpTensor, TensorOperation)
CREATE_AND_DESTROY(ReduceTensor, TensorReduction)
CREATE_AND_DESTROY(Dropout, DropoutForm)
CREATE_AND_DESTROY(CTCLoss, CtcForm)
#undef CREATE_AND_DESTROY

// --- tensors ---

GPUKERNEL_EXPORT int cudnnSetTensorNdDescriptor(TensorLayout* tensor, int type, int rank, const int* extents,
                                                const int* strides) {
    return strides ? fill(tensor, type, rank, extents, strides) : BAD_PARAM;
}
GPUKERNEL_EXPORT int cudnnSetTensorNdDescriptorEx(TensorLayout* tensor, int format, int type, int rank,
                                                  const int* extents) {
    if (format == NCHW) return fill(tensor, type, rank, extents, nullptr);
    if (format != NHWC) return NOT_SUPPORTED;
    if (const int status = fill(tensor, type, rank, extents, nullptr)) return status;
    if (rank < 3) return BAD_PARAM;
    int volume = extents[1];
    tensor->stride[1] = 1;
    for (int i = rank - 1; i >= 2; --i) tensor->stride[i] = volume, volume *= extents[i];
    tensor->stride[0] = volume;
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnSetTensor4dDescriptor(TensorLayout* tensor, int format, int type, int n, int c,
                                                int h, int w) {
    const int extents[] = {n, c, h, w};
    return cudnnSetTensorNdDescriptorEx(tensor, format, type, 4, extents);
}
GPUKERNEL_EXPORT int cudnnSetTensor4dDescriptorEx(TensorLayout* tensor, int type, int n, int c, int h, int w,
                                                  int of_n, int of_c, int of_h, int of_w) {
    const int extents[] = {n, c, h, w}, strides[] = {of_n, of_c, of_h, of_w};
    return fill(tensor, type, 4, extents, strides);
}
GPUKERNEL_EXPORT int cudnnGetTensorNdDescriptor(const TensorLayout* tensor, int requested, int* type,
                                                int* rank, int* extents, int* strides) {
    if (!tensor || requested < 0) return BAD_PARAM;
    give(type, tensor->type), give(rank, tensor->rank);
    const int count = std::min(requested, tensor->rank);
    give(extents, tensor->extent, count), give(strides, tensor->stride, count);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnGetTensor4dDescriptor(const TensorLayout* tensor, int* type, int* n, int* c, int* h,
                                                int* w, int* of_n, int* of_c, int* of_h, int* of_w) {
    if (!tensor || tensor->rank != 4) return BAD_PARAM;
    give(type, tensor->type);
    int* const extents[] = {n, c, h, w};
    int* const strides[] = {of_n, of_c, of_h, of_w};
    for (int i = 0; i < 4; ++i) give(extents[i], tensor->extent[i]), give(strides[i], tensor->stride[i]);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnGetTensorSizeInBytes(const TensorLayout* tensor, size_t* bytes) {
    if (!tensor || !bytes || !tensor->rank) return BAD_PARAM;
    size_t last = 0;
    for (int i = 0; i < tensor->rank; ++i)
        last += static_cast<size_t>(tensor->extent[i] - 1) * static_cast<size_t>(tensor->stride[i]);
    *bytes = (last + 1) * element_bytes(tensor->type);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnDeriveBNTensorDescriptor(TensorLayout* derived, const TensorLayout* tensor,
                                                   int mode) {
    if (!derived || !tensor || tensor->rank < 4 || mode < 0 || mode > 2) return BAD_PARAM;
    int extents[MOST_DIMENSIONS];
    std::copy_n(tensor->extent, tensor->rank, extents);
    extents[0] = 1;
    if (mode)  // spatial: one for each channel
        for (int i = 2; i < tensor->rank; ++i) extents[i] = 1;
    return fill(derived, tensor->type == DOUBLE ? DOUBLE : FLOAT, tensor->rank, extents, nullptr);
}

// --- filters ---

GPUKERNEL_EXPORT int cudnnSetFilterNdDescriptor(FilterLayout* filter, int type, int format, int rank,
                                                const int* extents) {
    return fill(filter, type, format, rank, extents);
}
GPUKERNEL_EXPORT int cudnnSetFilter4dDescriptor(FilterLayout* filter, int type, int format, int k, int c,
                                                int h, int w) {
    const int extents[] = {k, c, h, w};
    return fill(filter, type, format, 4, extents);
}
GPUKERNEL_EXPORT int cudnnGetFilterNdDescriptor(const FilterLayout* filter, int requested, int* type,
                                                int* format, int* rank, int* extents) {
    if (!filter || requested < 0) return BAD_PARAM;
    give(type, filter->type), give(format, filter->format), give(rank, filter->rank);
    give(extents, filter->extent, std::min(requested, filter->rank));
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnGetFilter4dDescriptor(const FilterLayout* filter, int* type, int* format, int* k,
                                                int* c, int* h, int* w) {
    if (!filter || filter->rank != 4) return BAD_PARAM;
    give(type, filter->type), give(format, filter->format);
    int* const extents[] = {k, c, h, w};
    for (int i = 0; i < 4; ++i) give(extents[i], filter->extent[i]);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnGetFilterSizeInBytes(const FilterLayout* filter, size_t* bytes) {
    if (!filter || !bytes) return BAD_PARAM;
    *bytes = element_bytes(filter->type);
    for (int i = 0; i < filter->rank; ++i) *bytes *= static_cast<size_t>(filter->extent[i]);
    return SUCCESS;
}

// --- convolutions ---

GPUKERNEL_EXPORT int cudnnSetConvolutionNdDescriptor(ConvolutionForm* form, int rank, const int* padding,
                                                     const int* strides, const int* dilations, int mode,
                                                     int compute) {
    return fill(form, rank, padding, strides, dilations, mode, compute);
}
GPUKERNEL_EXPORT int cudnnSetConvolution2dDescriptor(ConvolutionForm* form, int pad_h, int pad_w, int u,
                                                     int v, int dilation_h, int dilation_w, int mode,
                                                     int compute) {
    const int padding[] = {pad_h, pad_w}, strides[] = {u, v}, dilations[] = {dilation_h, dilation_w};
    return fill(form, 2, padding, strides, dilations, mode, compute);
}
GPUKERNEL_EXPORT int cudnnGetConvolutionNdDescriptor(const ConvolutionForm* form, int requested, int* rank,
                                                     int* padding, int* strides, int* dilations, int* mode,
                                                     int* compute) {
    if (!form || requested < 0) return BAD_PARAM;
    const int count = std::min(requested, form->rank);
    give(rank, form->rank), give(mode, form->mode), give(compute, form->compute);
    give(padding, form->padding, count), give(strides, form->stride, count);
    give(dilations, form->dilation, count);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnSetConvolutionGroupCount(ConvolutionForm* form, int groups) {
    return form && groups > 0 ? (form->groups = groups, SUCCESS) : BAD_PARAM;
}
GPUKERNEL_EXPORT int cudnnGetConvolutionGroupCount(const ConvolutionForm* form, int* groups) {
    return form && groups ? (*groups = std::max(form->groups, 1), SUCCESS) : BAD_PARAM;
}
GPUKERNEL_EXPORT int cudnnSetConvolutionMathType(ConvolutionForm* form, int math) {
    return form && math >= 0 && math <= 3 ? (form->math = math, SUCCESS) : BAD_PARAM;
}
GPUKERNEL_EXPORT int cudnnGetConvolutionMathType(const ConvolutionForm* form, int* math) {
    return form && math ? (*math = form->math, SUCCESS) : BAD_PARAM;
}
GPUKERNEL_EXPORT int cudnnSetConvolutionReorderType(ConvolutionForm* form, int reorder) {
    return form ? (form->reorder = reorder, SUCCESS) : BAD_PARAM;
}
GPUKERNEL_EXPORT int cudnnGetConvolutionNdForwardOutputDim(const ConvolutionForm* form, const TensorLayout* x,
                                                           const FilterLayout* w, int rank, int* extents) {
    if (!form || !x || !w || !extents || rank != form->rank + 2 || x->rank != rank || w->rank != rank)
        return BAD_PARAM;
    extents[0] = x->extent[0], extents[1] = w->extent[0];
    for (int i = 2; i < rank; ++i) {
        const int64_t covered = int64_t{x->extent[i]} + 2 * int64_t{form->padding[i - 2]} -
                                int64_t{form->dilation[i - 2]} * (w->extent[i] - 1) - 1;
        if (covered < 0 || covered > INT32_MAX) return BAD_PARAM;
        extents[i] = static_cast<int>(covered) / form->stride[i - 2] + 1;
    }
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnGetConvolution2dForwardOutputDim(const ConvolutionForm* form, const TensorLayout* x,
                                                           const FilterLayout* w, int* n, int* c, int* height,
                                                           int* width) {
    int extents[4];
    if (const int status = cudnnGetConvolutionNdForwardOutputDim(form, x, w, 4, extents)) return status;
    give(n, extents[0]), give(c, extents[1]), give(height, extents[2]), give(width, extents[3]);
    return SUCCESS;
}

// --- pooling ---

GPUKERNEL_EXPORT int cudnnSetPoolingNdDescriptor(PoolingForm* form, int mode, int nan, int rank,
                                                 const int* window, const int* padding, const int* strides) {
    return fill(form, mode, nan, rank, window, padding, strides);
}
GPUKERNEL_EXPORT int cudnnSetPooling2dDescriptor(PoolingForm* form, int mode, int nan, int height, int width,
                                                 int pad_h, int pad_w, int stride_h, int stride_w) {
    const int window[] = {height, width}, padding[] = {pad_h, pad_w}, strides[] = {stride_h, stride_w};
    return fill(form, mode, nan, 2, window, padding, strides);
}
GPUKERNEL_EXPORT int cudnnGetPoolingNdDescriptor(const PoolingForm* form, int requested, int* mode, int* nan,
                                                 int* rank, int* window, int* padding, int* strides) {
    if (!form || requested < 0) return BAD_PARAM;
    const int count = std::min(requested, form->rank);
    give(mode, form->mode), give(nan, form->nan), give(rank, form->rank);
    give(window, form->window, count), give(padding, form->padding, count),
        give(strides, form->stride, count);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnGetPoolingNdForwardOutputDim(const PoolingForm* form, const TensorLayout* x,
                                                       int rank, int* extents) {
    if (!form || !x || !extents || rank != form->rank + 2 || x->rank != rank) return BAD_PARAM;
    extents[0] = x->extent[0], extents[1] = x->extent[1];
    for (int i = 2; i < rank; ++i)
        extents[i] = static_cast<int>(
            (int64_t{x->extent[i]} + 2 * int64_t{form->padding[i - 2]} - form->window[i - 2]) /
                form->stride[i - 2] +
            1);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnGetPooling2dForwardOutputDim(const PoolingForm* form, const TensorLayout* x, int* n,
                                                       int* c, int* height, int* width) {
    int extents[4];
    if (const int status = cudnnGetPoolingNdForwardOutputDim(form, x, 4, extents)) return status;
    give(n, extents[0]), give(c, extents[1]), give(height, extents[2]), give(width, extents[3]);
    return SUCCESS;
}

// --- others ---

GPUKERNEL_EXPORT int cudnnSetActivationDescriptor(ActivationForm* form, int mode, int nan,
                                                  double coefficient) {
    if (!form || mode < 0 || mode > 6) return BAD_PARAM;
    *form = {mode, nan, coefficient, form->swish_beta != 0 ? form->swish_beta : 1};
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnGetActivationDescriptor(const ActivationForm* form, int* mode, int* nan,
                                                  double* coefficient) {
    if (!form) return BAD_PARAM;
    give(mode, form->mode), give(nan, form->nan), give(coefficient, form->coefficient);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnSetActivationDescriptorSwishBeta(ActivationForm* form, double beta) {
    return form ? (form->swish_beta = beta, SUCCESS) : BAD_PARAM;
}
GPUKERNEL_EXPORT int cudnnSetLRNDescriptor(NormalizationForm* form, unsigned channels, double alpha,
                                           double beta, double k) {
    if (!form || channels < 1 || channels > 16 || k < 1e-5 || beta < 0.01) return BAD_PARAM;
    *form = {channels, alpha, beta, k};
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnGetLRNDescriptor(const NormalizationForm* form, unsigned* channels, double* alpha,
                                           double* beta, double* k) {
    if (!form) return BAD_PARAM;
    give(channels, form->channels), give(alpha, form->alpha), give(beta, form->beta), give(k, form->k);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnSetOpTensorDescriptor(TensorOperation* form, int operation, int compute, int nan) {
    if (!form || operation < 0 || operation > 5) return BAD_PARAM;
    *form = {operation, compute, nan};
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnGetOpTensorDescriptor(const TensorOperation* form, int* operation, int* compute,
                                                int* nan) {
    if (!form) return BAD_PARAM;
    give(operation, form->operation), give(compute, form->compute), give(nan, form->nan);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnSetReduceTensorDescriptor(TensorReduction* form, int operation, int compute,
                                                    int nan, int indices, int index_type) {
    if (!form || operation < 0 || operation > 8) return BAD_PARAM;
    *form = {operation, compute, nan, indices, index_type};
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnGetReduceTensorDescriptor(const TensorReduction* form, int* operation, int* compute,
                                                    int* nan, int* indices, int* index_type) {
    if (!form) return BAD_PARAM;
    give(operation, form->operation), give(compute, form->compute), give(nan, form->nan);
    give(indices, form->indices), give(index_type, form->index_type);
    return SUCCESS;
}

// --- connectionist temporal classification ---

namespace {
int fill(CtcForm* form, const CtcForm& with) {
    if (!form || with.normalization < 0 || with.normalization > 1 || with.longest < 0) return BAD_PARAM;
    if (with.compute != FLOAT) return NOT_SUPPORTED;
    *form = with;
    return SUCCESS;
}
int read(const CtcForm* form, int* compute, int* normalization, int* gradients, int* longest) {
    if (!form) return BAD_PARAM;
    give(compute, form->compute), give(normalization, form->normalization);
    give(gradients, form->gradients), give(longest, form->longest);
    return SUCCESS;
}
}  // namespace

GPUKERNEL_EXPORT int cudnnSetCTCLossDescriptor(CtcForm* form, int compute) {
    return fill(form, {compute, 0, 0, 0, 7});
}
GPUKERNEL_EXPORT int cudnnSetCTCLossDescriptorEx(CtcForm* form, int compute, int normalization,
                                                 int gradients) {
    return fill(form, {compute, normalization, gradients, 0, 7});
}
GPUKERNEL_EXPORT int cudnnSetCTCLossDescriptor_v8(CtcForm* form, int compute, int normalization,
                                                  int gradients, int longest) {
    return fill(form, {compute, normalization, gradients, longest, 8});
}
GPUKERNEL_EXPORT int cudnnSetCTCLossDescriptor_v9(CtcForm* form, int compute, int normalization,
                                                  int gradients, int longest) {
    return fill(form, {compute, normalization, gradients, longest, 9});
}
GPUKERNEL_EXPORT int cudnnGetCTCLossDescriptor(const CtcForm* form, int* compute) {
    return read(form, compute, nullptr, nullptr, nullptr);
}
GPUKERNEL_EXPORT int cudnnGetCTCLossDescriptorEx(const CtcForm* form, int* compute, int* normalization,
                                                 int* gradients) {
    return read(form, compute, normalization, gradients, nullptr);
}
GPUKERNEL_EXPORT int cudnnGetCTCLossDescriptor_v8(const CtcForm* form, int* compute, int* normalization,
                                                  int* gradients, int* longest) {
    return read(form, compute, normalization, gradients, longest);
}
GPUKERNEL_EXPORT int cudnnGetCTCLossDescriptor_v9(const CtcForm* form, int* compute, int* normalization,
                                                  int* gradients, int* longest) {
    return read(form, compute, normalization, gradients, longest);
}

}  // namespace gpukernel::libraries::cudnn
