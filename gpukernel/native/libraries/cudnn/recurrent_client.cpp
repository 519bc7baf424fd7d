// What the program asks about recurrent layers, and dropout's states.
#include <cstring>

#include "libraries/cudnn/client.h"
#include "libraries/cudnn/recurrent.h"

namespace gpukernel::libraries::cudnn {

void append(std::vector<uint64_t>& words, const void* data, size_t bytes) {
    const size_t at = words.size();
    words.resize(at + (bytes + 7) / 8);
    if (bytes) std::memcpy(words.data() + at, data, bytes);
}
void append(std::vector<uint64_t>& words, const SequencesForm& form) {
    const int32_t numbers[] = {form.type, form.layout, form.steps, form.batch, form.vector, form.fills};
    append(words, numbers, sizeof numbers);
    words.push_back(form.fill);
    append(words, form.lengths.data(), form.lengths.size() * sizeof(int32_t));
}

namespace {
// The bytes of weights, workspace and reserve.
int sizes(void* handle, const char* name, const RecurrentForm* form, int mode, const SequencesForm* x,
          std::vector<int64_t>& answer) {
    const Handle* const own = handle_of(handle);
    if (!own || !form || (x && x->lengths.empty())) return BAD_PARAM;
    std::vector<uint64_t> words{own->name, static_cast<uint64_t>(mode), 1};
    append(words, form, sizeof *form);
    words.push_back(x != nullptr);
    if (x) append(words, *x);
    const int status = ask_words(*own, RECURRENT_SIZES, name, words, answer);
    return !status && answer.size() != 3 ? static_cast<int>(INTERNAL_ERROR) : status;
}
}  // namespace

GPUKERNEL_EXPORT int cudnnGetRNNWeightSpaceSize(void* handle, const RecurrentForm* form, size_t* bytes) {
    std::vector<int64_t> answer;
    if (!bytes) return BAD_PARAM;
    const int status = sizes(handle, "cudnnGetRNNWeightSpaceSize", form, 0, nullptr, answer);
    if (!status) *bytes = static_cast<size_t>(answer[0]);
    return status;
}
GPUKERNEL_EXPORT int cudnnGetRNNTempSpaceSizes(void* handle, const RecurrentForm* form, int mode,
                                               const SequencesForm* x, size_t* workspace, size_t* reserve) {
    std::vector<int64_t> answer;
    if (!x || mode < 0 || mode > 1) return BAD_PARAM;
    const int status = sizes(handle, "cudnnGetRNNTempSpaceSizes", form, mode, x, answer);
    if (!status && workspace) *workspace = static_cast<size_t>(answer[1]);
    if (!status && reserve) *reserve = static_cast<size_t>(answer[2]);
    return status;
}

GPUKERNEL_EXPORT int cudnnGetRNNWeightParams(void* handle, const RecurrentForm* form, int32_t layer, size_t,
                                             const void* weights, int32_t matrix, TensorLayout* m,
                                             void** m_at, TensorLayout* b, void** b_at) {
    const Handle* const own = handle_of(handle);
    if (!own || !form || !m || !m_at || !b || !b_at) return BAD_PARAM;
    std::vector<uint64_t> words{own->name, static_cast<uint64_t>(layer), static_cast<uint64_t>(matrix), 1};
    append(words, form, sizeof *form);
    std::vector<int64_t> answer;
    if (const int status = ask_words(*own, RECURRENT_WEIGHTS, "cudnnGetRNNWeightParams", words, answer))
        return status;
    constexpr size_t EACH = 2 + (sizeof(TensorLayout) + 7) / 8;
    if (answer.size() != 2 * EACH) return INTERNAL_ERROR;
    const int64_t* from = answer.data();
    for (auto [layout, at] : {std::pair{m, m_at}, std::pair{b, b_at}}) {
        *at = from[0] ? const_cast<char*>(static_cast<const char*>(weights)) + from[1] : nullptr;
        std::memcpy(static_cast<void*>(layout), from + 2, sizeof *layout);
        from += EACH;
    }
    return SUCCESS;
}

GPUKERNEL_EXPORT int cudnnDropoutGetStatesSize(void* handle, size_t* bytes) {
    const Handle* const own = handle_of(handle);
    std::vector<int64_t> answer;
    if (!own || !bytes) return BAD_PARAM;
    const int status = ask_words(*own, DROPOUT_STATES, "cudnnDropoutGetStatesSize", {own->name}, answer);
    if (!status && answer.size() == 1) *bytes = static_cast<size_t>(answer[0]);
    return !status && answer.size() != 1 ? static_cast<int>(INTERNAL_ERROR) : status;
}
GPUKERNEL_EXPORT int cudnnRestoreDropoutDescriptor(DropoutForm* form, void* handle, float dropout,
                                                   void* states, size_t bytes, unsigned long long seed) {
    if (!form || !handle_of(handle) || !(dropout >= 0 && dropout <= 1)) return BAD_PARAM;
    *form = {static_cast<double>(dropout), reinterpret_cast<uint64_t>(states), bytes, seed};
    return SUCCESS;
}
// The states are made on the device, in the stream's order.
GPUKERNEL_EXPORT int cudnnSetDropoutDescriptor(DropoutForm* form, void* handle, float dropout, void* states,
                                               size_t bytes, unsigned long long seed) {
    if (const int status = cudnnRestoreDropoutDescriptor(form, handle, dropout, states, bytes, seed))
        return status;
    Handle* const own = handle_of(handle);
    if (!states) return SUCCESS;
    std::vector<uint64_t> words{own->name};
    append(words, form, sizeof *form);
    return queue_words(*own, DROPOUT_SET, words);
}

}  // namespace gpukernel::libraries::cudnn
