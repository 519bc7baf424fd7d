// Descriptors of recurrent layers and of dropout: what needs no device.
#include "libraries/cudnn/recurrent.h"

#include <algorithm>
#include <cstring>

#include "libraries/cudnn/handle.h"

namespace gpukernel::libraries::cudnn {

GPUKERNEL_EXPORT int cudnnCreateRNNDescriptor(RecurrentDescriptor** form) {
    return form ? (*form = new RecurrentDescriptor{}, SUCCESS) : BAD_PARAM;
}
GPUKERNEL_EXPORT int cudnnDestroyRNNDescriptor(RecurrentDescriptor* form) { return delete form, SUCCESS; }
GPUKERNEL_EXPORT int cudnnCreateRNNDataDescriptor(SequencesForm** form) {
    return form ? (*form = new SequencesForm{}, SUCCESS) : BAD_PARAM;
}
GPUKERNEL_EXPORT int cudnnDestroyRNNDataDescriptor(SequencesForm* form) { return delete form, SUCCESS; }

GPUKERNEL_EXPORT int cudnnSetRNNDescriptor_v8(RecurrentDescriptor* form, int algorithm, int cell, int bias,
                                              int direction, int input_mode, int type, int precision,
                                              int math, int32_t inputs, int32_t hidden, int32_t projected,
                                              int32_t layers, const DropoutForm* dropout, uint32_t flags) {
    if (!form || cell < CELL_RELU || cell > CELL_GRU || bias < 0 || bias > 3 || direction < 0 ||
        direction > 1 || input_mode < 0 || input_mode > 1 || inputs <= 0 || hidden <= 0 || layers <= 0 ||
        projected < 0 || projected > hidden)
        return BAD_PARAM;
    static_cast<RecurrentForm&>(*form) = {algorithm,
                                          cell,
                                          bias,
                                          direction,
                                          input_mode,
                                          type,
                                          precision,
                                          math,
                                          inputs,
                                          hidden,
                                          projected,
                                          layers,
                                          static_cast<int32_t>(flags),
                                          0,
                                          dropout ? *dropout : DropoutForm{}};
    form->given = dropout;
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnGetRNNDescriptor_v8(const RecurrentDescriptor* form, int* algorithm, int* cell,
                                              int* bias, int* direction, int* input_mode, int* type,
                                              int* precision, int* math, int32_t* inputs, int32_t* hidden,
                                              int32_t* projected, int32_t* layers,
                                              const DropoutForm** dropout, uint32_t* flags) {
    if (!form) return BAD_PARAM;
    const auto give = [](int32_t* to, int32_t value) {
        if (to) *to = value;
    };
    give(algorithm, form->algorithm), give(cell, form->cell), give(bias, form->bias);
    give(direction, form->direction), give(input_mode, form->input_mode), give(type, form->type);
    give(precision, form->precision), give(math, form->math), give(inputs, form->inputs);
    give(hidden, form->hidden), give(projected, form->projected), give(layers, form->layers);
    if (dropout) *dropout = form->given;
    if (flags) *flags = static_cast<uint32_t>(form->flags);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnGetDropoutDescriptor(const DropoutForm* form, void* handle, float* dropout,
                                               void** states, unsigned long long* seed) {
    if (!form || !handle_of(handle)) return BAD_PARAM;
    if (dropout) *dropout = static_cast<float>(form->dropout);
    if (states) *states = reinterpret_cast<void*>(form->states);
    if (seed) *seed = form->seed;
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnRNNSetClip_v8(RecurrentForm* form, int mode, int, double, double) {
    if (!form || mode < 0 || mode > 1) return BAD_PARAM;
    return mode ? refused("cudnnRNNSetClip_v8", "a clipped cell") : SUCCESS;
}

GPUKERNEL_EXPORT int cudnnSetRNNDataDescriptor(SequencesForm* form, int type, int layout, int steps,
                                               int batch, int vector, const int* lengths, const void* fill) {
    if (!form || !lengths || layout < STEPS_OUTSIDE || layout > BATCH_OUTSIDE || steps <= 0 || batch <= 0 ||
        vector <= 0 || batch > MOST_BATCH)
        return BAD_PARAM;
    if (std::any_of(lengths, lengths + batch, [steps](int one) { return one < 0 || one > steps; }))
        return BAD_PARAM;
    if (!element_bytes(type)) return NOT_SUPPORTED;
    *form = {type, layout, steps, batch, vector, fill != nullptr, 0, {lengths, lengths + batch}};
    if (fill) std::memcpy(&form->fill, fill, element_bytes(type));
    return SUCCESS;
}

}  // namespace gpukernel::libraries::cudnn
