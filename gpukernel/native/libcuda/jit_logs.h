// The options of a load or a link that name buffers for the compiler's logs (CUjit_option).
#pragma once

#include <string>
#include <string_view>

#include "codegen/cuda_driver.h"

#pragma GCC visibility push(hidden)

namespace gpukernel::libcuda {

// A program's options for the compiler: where its logs go, and how many registers a thread may have.
class JitLogs {
  public:
    JitLogs() = default;
    // The information log comes out empty, where its buffer has a size: nothing here writes one.
    JitLogs(unsigned count, CUjit_option* options, void** values);
    // Fill the error log, and its length.  Returns false where there is something to say and no buffer for
    // it.
    bool write(std::string_view log) const;
    unsigned max_registers() const { return max_registers_; }  // 0: no limit

  private:
    char* error_ = nullptr;
    size_t size_ = 0;
    void** size_out_ = nullptr;
    unsigned max_registers_ = 0;
};

// The text of PTX at `image` with the limit of the options; empty where they have none, or it is no text.
std::string limited_registers(std::string_view image, const JitLogs& options);

}  // namespace gpukernel::libcuda

#pragma GCC visibility pop
