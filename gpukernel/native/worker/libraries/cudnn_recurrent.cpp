// Recurrent layers and dropout: their descriptors in the worker, and what programs ask about them.
#include <algorithm>
#include <cstring>

#include "worker/libraries/cudnn.h"
#include "worker/libraries/cudnn_descriptors.h"

namespace gpukernel::worker {

using namespace libraries::cudnn;

namespace {
template <class... Values>
int call(const MathLibrary& library, const char* name, Values... values) {
    auto* const function = reinterpret_cast<int (*)(Values...)>(library.function(name));
    return function ? function(values...) : NOT_SUPPORTED;
}
void add(std::vector<char>& outputs, int64_t number) {
    const char* const from = reinterpret_cast<const char*>(&number);
    outputs.insert(outputs.end(), from, from + sizeof number);
}
template <class Form>
bool read(LibraryArguments& in, Form& form) {
    const void* const from = in.bytes(sizeof form);
    if (from) std::memcpy(static_cast<void*>(&form), from, sizeof form);
    return from;
}
}  // namespace

DescribedDropout::~DescribedDropout() {
    if (made_) call(library_, "cudnnDestroyDropoutDescriptor", made_);
}
int DescribedDropout::make(LibraryArguments& in, const DropoutForm& form, bool fresh) {
    if (form.states && !in.in_lease(form.states, std::max<uint64_t>(form.bytes, 1))) return BAD_PARAM;
    if (const int status = call(library_, "cudnnCreateDropoutDescriptor", &made_)) return status;
    // A descriptor without states has no dropout.
    fresh = fresh || !form.states;
    return call(library_, fresh ? "cudnnSetDropoutDescriptor" : "cudnnRestoreDropoutDescriptor", made_,
                in.handle(), form.states ? static_cast<float>(form.dropout) : 0.0f,
                reinterpret_cast<void*>(form.states), static_cast<size_t>(form.states ? form.bytes : 0),
                static_cast<unsigned long long>(form.seed));
}

Described<RecurrentForm>::Described(LibraryArguments& in, bool)
    : library_(in.object->library), dropout_(library_) {
    RecurrentForm form{};
    if (in.word() != 1 || !read(in, form)) {
        status_ = BAD_PARAM;
        return;
    }
    status_ = dropout_.make(in, form.dropout, false);
    if (!status_) status_ = call(library_, "cudnnCreateRNNDescriptor", &made_);
    if (!status_)
        status_ =
            call(library_, "cudnnSetRNNDescriptor_v8", made_, form.algorithm, form.cell, form.bias,
                 form.direction, form.input_mode, form.type, form.precision, form.math, form.inputs,
                 form.hidden, form.projected, form.layers, dropout_.get(), static_cast<uint32_t>(form.flags));
}
Described<RecurrentForm>::~Described() {
    if (made_) call(library_, "cudnnDestroyRNNDescriptor", made_);
}

Described<SequencesForm>::Described(LibraryArguments& in, bool optional) : library_(in.object->library) {
    const uint64_t given = in.word();
    if (!given && optional && !in.failed()) return;
    int32_t numbers[6] = {};
    status_ = BAD_PARAM;
    if (given != 1 || !read(in, numbers)) return;
    const int32_t batch = numbers[3];
    form_ = {numbers[0], numbers[1], numbers[2], batch, numbers[4], numbers[5], in.word(), {}};
    if (in.failed() || batch <= 0 || batch > MOST_BATCH) return;
    const void* const lengths = in.bytes(static_cast<size_t>(batch) * sizeof(int32_t));
    if (!lengths) return;
    form_.lengths.resize(static_cast<size_t>(batch));
    std::memcpy(form_.lengths.data(), lengths, form_.lengths.size() * sizeof(int32_t));
    status_ = call(library_, "cudnnCreateRNNDataDescriptor", &made_);
    if (!status_)
        status_ = call(library_, "cudnnSetRNNDataDescriptor", made_, form_.type, form_.layout, form_.steps,
                       batch, form_.vector, const_cast<const int*>(form_.lengths.data()),
                       form_.fills ? static_cast<void*>(&form_.fill) : nullptr);
}
Described<SequencesForm>::~Described() {
    if (made_) call(library_, "cudnnDestroyRNNDataDescriptor", made_);
}

bool covered(const LibraryArguments& in, const Described<SequencesForm>& sequences, const void* at) {
    const SequencesForm& s = sequences.form();
    if (!sequences.get() || !at) return true;
    __int128 places = static_cast<__int128>(s.steps) * s.batch;
    if (s.layout == STEPS_PACKED) {
        places = 0;
        for (const int32_t length : s.lengths) places += length;
    }
    const __int128 bytes = places * s.vector * static_cast<int64_t>(element_bytes(s.type));
    return bytes > 0 && bytes >> 48 == 0 &&
           in.in_lease(reinterpret_cast<uint64_t>(at), static_cast<uint64_t>(bytes));
}

int recurrent_sizes(LibraryArguments& in) {
    const auto mode = in.number<int>();
    const Described<RecurrentForm> layers(in, false);
    if (layers.status()) return layers.status();
    const Described<SequencesForm> x(in, true);
    if (x.status()) return x.status();
    size_t weights = 0, workspace = 0, reserve = 0;
    const MathLibrary& library = in.object->library;
    int status = call(library, "cudnnGetRNNWeightSpaceSize", in.handle(), layers.get(), &weights);
    if (!status && x.get())
        status = call(library, "cudnnGetRNNTempSpaceSizes", in.handle(), layers.get(), mode, x.get(),
                      &workspace, &reserve);
    if (!status)
        for (const size_t size : {weights, workspace, reserve}) add(in.outputs(), static_cast<int64_t>(size));
    return status;
}

// Of the matrix and of the bias: whether it is there, where, and its layout.
int recurrent_weights(LibraryArguments& in) {
    const auto layer = in.number<int32_t>(), matrix = in.number<int32_t>();
    const Described<RecurrentForm> layers(in, false);
    if (layers.status()) return layers.status();
    const MathLibrary& library = in.object->library;
    void *tensors[2] = {}, *places[2] = {};
    size_t weights = 0;
    int status = call(library, "cudnnGetRNNWeightSpaceSize", in.handle(), layers.get(), &weights);
    for (void*& tensor : tensors)
        if (!status) status = call(library, "cudnnCreateTensorDescriptor", &tensor);
    // Without an address of the weights, those of their parts are distances.
    if (!status)
        status =
            call(library, "cudnnGetRNNWeightParams", in.handle(), layers.get(), layer, weights,
                 static_cast<const void*>(nullptr), matrix, tensors[0], &places[0], tensors[1], &places[1]);
    for (int i = 0; i < 2 && !status; ++i) {
        TensorLayout layout{};
        int rank = 0;
        // What is not there has no layout; one that is there begins somewhere.
        const bool there = !call(library, "cudnnGetTensorNdDescriptor", tensors[i], MOST_DIMENSIONS,
                                 &layout.type, &rank, &layout.extent[0], &layout.stride[0]) &&
                           rank > 0;
        layout.rank = there ? rank : 0;
        add(in.outputs(), there);
        add(in.outputs(), static_cast<int64_t>(reinterpret_cast<uintptr_t>(places[i])));
        const char* const from = reinterpret_cast<const char*>(&layout);
        in.outputs().insert(in.outputs().end(), from, from + sizeof layout);
    }
    for (void* tensor : tensors)
        if (tensor) call(library, "cudnnDestroyTensorDescriptor", tensor);
    return status;
}

int dropout_states(LibraryArguments& in) {
    size_t bytes = 0;
    const int status = call(in.object->library, "cudnnDropoutGetStatesSize", in.handle(), &bytes);
    if (!status) add(in.outputs(), static_cast<int64_t>(bytes));
    return status;
}

int dropout_set(LibraryArguments& in) {
    DropoutForm form{};
    if (!read(in, form)) return BAD_PARAM;
    DescribedDropout dropout(in.object->library);
    return dropout.make(in, form, true);
}

}  // namespace gpukernel::worker
