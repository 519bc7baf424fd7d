#include "worker/libraries/cudnn_descriptors.h"

#include <cstring>
#include <string>

namespace gpukernel::worker {

using namespace libraries::cudnn;

namespace {
template <class Function>
Function find(const MathLibrary& library, const char* name) {
    return reinterpret_cast<Function>(library.function(name));
}
template <class... Values>
int call(const MathLibrary& library, const char* name, void* descriptor, Values... values) {
    auto* const function = find<int (*)(void*, Values...)>(library, name);
    return function ? function(descriptor, values...) : NOT_SUPPORTED;
}

constexpr const char* name_of(const TensorLayout&) { return "Tensor"; }
constexpr const char* name_of(const FilterLayout&) { return "Filter"; }
constexpr const char* name_of(const ConvolutionForm&) { return "Convolution"; }
constexpr const char* name_of(const PoolingForm&) { return "Pooling"; }
constexpr const char* name_of(const ActivationForm&) { return "Activation"; }
constexpr const char* name_of(const NormalizationForm&) { return "LRN"; }
constexpr const char* name_of(const TensorOperation&) { return "OpTensor"; }
constexpr const char* name_of(const TensorReduction&) { return "ReduceTensor"; }
constexpr const char* name_of(const CtcForm&) { return "CTCLoss"; }

// The library reads as many numbers of an array as the rank says.
constexpr bool is_rank(int rank, int most) { return rank >= 1 && rank <= most; }

int fill(const MathLibrary& library, void* to, const TensorLayout& t) {
    if (!is_rank(t.rank, MOST_DIMENSIONS)) return BAD_PARAM;
    return call(library, "cudnnSetTensorNdDescriptor", to, t.type, t.rank, &t.extent[0], &t.stride[0]);
}
int fill(const MathLibrary& library, void* to, const FilterLayout& f) {
    if (!is_rank(f.rank, MOST_DIMENSIONS)) return BAD_PARAM;
    return call(library, "cudnnSetFilterNdDescriptor", to, f.type, f.format, f.rank, &f.extent[0]);
}
int fill(const MathLibrary& library, void* to, const ConvolutionForm& c) {
    if (!is_rank(c.rank, MOST_DIMENSIONS - 2)) return BAD_PARAM;
    int status = call(library, "cudnnSetConvolutionNdDescriptor", to, c.rank, &c.padding[0], &c.stride[0],
                      &c.dilation[0], c.mode, c.compute);
    if (!status) status = call(library, "cudnnSetConvolutionGroupCount", to, c.groups);
    if (!status) status = call(library, "cudnnSetConvolutionMathType", to, c.math);
    if (!status && c.reorder) status = call(library, "cudnnSetConvolutionReorderType", to, c.reorder);
    return status;
}
int fill(const MathLibrary& library, void* to, const PoolingForm& p) {
    if (!is_rank(p.rank, MOST_DIMENSIONS - 2)) return BAD_PARAM;
    return call(library, "cudnnSetPoolingNdDescriptor", to, p.mode, p.nan, p.rank, &p.window[0],
                &p.padding[0], &p.stride[0]);
}
int fill(const MathLibrary& library, void* to, const ActivationForm& a) {
    constexpr int SWISH = 6;
    const int status = call(library, "cudnnSetActivationDescriptor", to, a.mode, a.nan, a.coefficient);
    if (status || a.mode != SWISH) return status;
    return call(library, "cudnnSetActivationDescriptorSwishBeta", to, a.swish_beta);
}
int fill(const MathLibrary& library, void* to, const NormalizationForm& n) {
    return call(library, "cudnnSetLRNDescriptor", to, static_cast<unsigned>(n.channels), n.alpha, n.beta,
                n.k);
}
int fill(const MathLibrary& library, void* to, const TensorOperation& o) {
    return call(library, "cudnnSetOpTensorDescriptor", to, o.operation, o.compute, o.nan);
}
int fill(const MathLibrary& library, void* to, const TensorReduction& r) {
    return call(library, "cudnnSetReduceTensorDescriptor", to, r.operation, r.compute, r.nan, r.indices,
                r.index_type);
}
int fill(const MathLibrary& library, void* to, const CtcForm& c) {
    if (c.version >= 8)
        return call(library, c.version == 8 ? "cudnnSetCTCLossDescriptor_v8" : "cudnnSetCTCLossDescriptor_v9",
                    to, c.compute, c.normalization, c.gradients, c.longest);
    return call(library, "cudnnSetCTCLossDescriptorEx", to, c.compute, c.normalization, c.gradients);
}
}  // namespace

namespace {
bool in_lease(const LibraryArguments& in, const void* at, __int128 elements, int type) {
    const size_t bytes = element_bytes(type);
    if (!at) return true;
    return elements > 0 && elements >> 44 == 0 && bytes &&
           in.in_lease(reinterpret_cast<uint64_t>(at), static_cast<uint64_t>(elements) * bytes);
}
}  // namespace

bool covered(const LibraryArguments& in, const Described<TensorLayout>& tensor, const void* at) {
    const TensorLayout& t = tensor.form();
    __int128 elements = 1;
    for (int i = 0; i < t.rank && tensor.get(); ++i)
        elements += static_cast<__int128>(t.extent[i] - 1) * t.stride[i];
    return !tensor.get() || in_lease(in, at, elements, t.type);
}
bool covered(const LibraryArguments& in, const Described<FilterLayout>& filter, const void* at) {
    const FilterLayout& f = filter.form();
    __int128 elements = 1;
    for (int i = 0; i < f.rank && filter.get(); ++i)
        if (f.extent[i] <= 0 || (elements *= f.extent[i]) >> 44) return false;
    return !filter.get() || in_lease(in, at, elements, f.type);
}

template <class Form>
Described<Form>::Described(LibraryArguments& in, bool optional) {
    const uint64_t given = in.word();
    if (in.failed() || given > 1 || (!given && !optional)) {
        status_ = BAD_PARAM;
        return;
    }
    if (!given) return;
    const void* const from = in.bytes(sizeof form_);
    if (!from) {
        status_ = BAD_PARAM;
        return;
    }
    std::memcpy(&form_, from, sizeof form_);
    const MathLibrary& library = in.object->library;
    const std::string name = name_of(form_);
    auto* const create = find<int (*)(void**)>(library, ("cudnnCreate" + name + "Descriptor").c_str());
    destroy_ = find<int (*)(void*)>(library, ("cudnnDestroy" + name + "Descriptor").c_str());
    status_ = create && destroy_ ? create(&made_) : static_cast<int>(NOT_SUPPORTED);
    if (!status_) status_ = fill(library, made_, form_);
}

template class Described<TensorLayout>;
template class Described<FilterLayout>;
template class Described<ConvolutionForm>;
template class Described<PoolingForm>;
template class Described<ActivationForm>;
template class Described<NormalizationForm>;
template class Described<TensorOperation>;
template class Described<TensorReduction>;
template class Described<CtcForm>;

}  // namespace gpukernel::worker
