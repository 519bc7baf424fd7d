// Descriptors of recurrent layers, which travel with each call.
#pragma once

#include <cstdint>
#include <vector>

#include "libraries/cudnn/descriptors.h"

namespace gpukernel::libraries::cudnn {

struct RecurrentForm {
    int32_t algorithm, cell, bias, direction, input_mode, type, precision, math, inputs, hidden, projected,
        layers, flags, clip;
    DropoutForm dropout;

    int32_t directions() const { return direction ? 2 : 1; }
};
// As the program has it: with the descriptor that it has given, which it may ask for.
struct RecurrentDescriptor : RecurrentForm {
    const DropoutForm* given = nullptr;
};
// Sequences of a batch, each of its own length.
struct SequencesForm {
    int32_t type, layout, steps, batch, vector, fills;
    uint64_t fill;  // the element that stands behind a sequence's end, where `fills`
    std::vector<int32_t> lengths;
};
enum Cell : int { CELL_RELU = 0, CELL_TANH = 1, CELL_LSTM = 2, CELL_GRU = 3 };
enum SequenceLayout : int { STEPS_OUTSIDE = 0, STEPS_PACKED = 1, BATCH_OUTSIDE = 2 };
constexpr int32_t MOST_BATCH = 1 << 16;

}  // namespace gpukernel::libraries::cudnn
