// OpenBLAS's product of two matrices on the host, as pieces of work use it.
#pragma once

#include "simgpu_libraries/openblas.h"

namespace gpukernel::simgpu_libraries::cudnn {

// C = op(A) op(B) + beta C, in columns.
template <class T>
void gemm(char ta, char tb, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb,
          T beta, T* c, int64_t ldc) {
    const auto product =
        GPUKERNEL_BLAS(T, "gemm", const char*, const char*, const int*, const int*, const int*, const T*,
                       const T*, const int*, const T*, const int*, const T*, T*, const int*);
    const int mi = static_cast<int>(m), ni = static_cast<int>(n), ki = static_cast<int>(k),
              la = static_cast<int>(lda), lb = static_cast<int>(ldb), lc = static_cast<int>(ldc);
    const T one = 1;
    product(&ta, &tb, &mi, &ni, &ki, &one, a, &la, b, &lb, &beta, c, &lc);
}

}  // namespace gpukernel::simgpu_libraries::cudnn
