// The frame of every function of the library: take the lock, check the device and the pointers, answer.
#pragma once

#include <cstdio>
#include <string>

#include "nvml/slice.h"

namespace gpukernel::nvml {

// `answer(DeviceFacts)` or `answer(Usage)` gives the function's result.
template <class Answer>
nvmlReturn_t with_device(nvmlDevice_t device, Answer answer) {
    std::lock_guard lock(state_mutex);
    if (nvmlReturn_t error = check(device)) return error;
    return answer(*device);
}

template <class Answer>
nvmlReturn_t with_facts(nvmlDevice_t device, Answer answer) {
    return with_device(device, [&](nvmlDevice_st& device) {
        const wire::DeviceFacts* facts = nullptr;
        if (nvmlReturn_t error = device.facts(facts)) return error;
        return answer(*facts);
    });
}

template <class Answer>
nvmlReturn_t with_usage(nvmlDevice_t device, Answer answer) {
    return with_device(device, [&](nvmlDevice_st& device) {
        Usage usage;
        if (nvmlReturn_t error = device.usage(usage)) return error;
        return answer(usage);
    });
}

// The same value for every device.
template <class Value>
nvmlReturn_t always(nvmlDevice_t device, Value* to, Value value) {
    return with_device(device, [&](nvmlDevice_st&) {
        if (!to) return NVML_ERROR_INVALID_ARGUMENT;
        *to = value;
        return NVML_SUCCESS;
    });
}

inline nvmlReturn_t put_text(const std::string& text, char* to, unsigned length) {
    if (!to) return NVML_ERROR_INVALID_ARGUMENT;
    if (text.size() >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
    std::snprintf(to, length, "%s", text.c_str());
    return NVML_SUCCESS;
}

}  // namespace gpukernel::nvml
