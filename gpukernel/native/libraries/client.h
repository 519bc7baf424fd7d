// One call of a math library in the user's program, on its way to the worker.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "libraries/library.h"
#include "libraries/port.h"

namespace gpukernel::libraries {

// The shim's port; nullptr, after one sentence, where the libcuda.so.1 of this process is not the shim.
const Port* port();

// The words of one call.
class Words {
  public:
    void number(uint64_t value) {
        if (count_ < MOST) words_[count_++] = value;
    }
    void bytes(const void* data, size_t size) {  // padded to whole words
        for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
            uint64_t word = 0;
            std::memcpy(&word, static_cast<const char*>(data) + at, std::min(size - at, sizeof word));
            number(word);
        }
    }
    const uint64_t* data() const { return words_; }
    size_t count() const { return count_; }
    bool full() const { return count_ == MOST; }

    static constexpr size_t MOST = 256;

  private:
    uint64_t words_[MOST];
    size_t count_ = 0;
};

// Asks, and where the library's status is not 0 prints the sentence that came with it, once.
CUresult ask(const PortCall& call, bool waits, const char* name, int32_t& status, void* outputs, size_t size,
             size_t& got);
// The same for what depends on the call's words alone, as the size of a workspace does: a program that asks
// so before each use waits for the worker once.
CUresult ask_once(const PortCall& call, const char* name, int32_t& status, void* outputs, size_t size,
                  size_t& got);

}  // namespace gpukernel::libraries
