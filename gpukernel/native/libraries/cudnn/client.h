// How cuDNN's calls leave the program: words of any number, with a handle.
#pragma once

#include <cstdint>
#include <vector>

#include "libraries/cudnn/handle.h"

namespace gpukernel::libraries::cudnn {

int queue_words(Handle& handle, uint32_t function, const std::vector<uint64_t>& words);
// `answer` receives numbers; what was wrong is printed once, with the function's name.
int ask_words(const Handle& handle, uint32_t function, const char* name, const std::vector<uint64_t>& words,
              std::vector<int64_t>& answer);

struct SequencesForm;
void append(std::vector<uint64_t>& words, const SequencesForm& form);
void append(std::vector<uint64_t>& words, const void* data, size_t bytes);

}  // namespace gpukernel::libraries::cudnn
