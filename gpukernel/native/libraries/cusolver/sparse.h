// cuSOLVER's sparse part: of it there is the solution of linear systems by orthogonal factors (csrlsvqr). Its
// functions are written by hand, since their tolerance is a number of the matrix's own type.
#pragma once

#include "libraries/cusolver/types.h"

namespace gpukernel::libraries::cusolver {

enum SparseFunction : uint32_t { SOLVE_SPARSE = 0x1000 };

// What index the first row and column have, by a descriptor of cuSPARSE's; -1 where it is none of a general
// matrix.
int first_index(void* descriptor);

// Each side's own.
int solve_sparse(void* handle, const char* name, int type, int m, int nnz, int base, const void* values,
                 const int* offsets, const int* columns, const void* b, double tolerance, void* x,
                 int* singularity);

}  // namespace gpukernel::libraries::cusolver
