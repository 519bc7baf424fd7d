// The options of a load or a link that name buffers for the compiler's logs (CUjit_option).
#pragma once

#include <string>
#include <string_view>

#include "codegen/cuda_driver.h"

#pragma GCC visibility push(hidden)

namespace gpukernel::libcuda {

class JitLogs {
  public:
    JitLogs() = default;
    // The information log comes out empty, where its buffer has a size: nothing here writes one.
    JitLogs(unsigned count, CUjit_option* options, void** values);
    // Fill the error log, and its length.  Returns false where there is something to say and no buffer for
    // it.
    bool write(std::string_view log) const;

  private:
    char* error_ = nullptr;
    size_t size_ = 0;
    void** size_out_ = nullptr;
};

}  // namespace gpukernel::libcuda

#pragma GCC visibility pop
