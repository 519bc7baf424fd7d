// The forms of a matrix in plain arrays, from one to another (cusparse/calls.txt names them).
#pragma once

#include "simgpu_libraries/cusparse/context.h"

namespace gpukernel::simgpu_libraries::cusparse {

int coo_to_csr(const Context& context, uint64_t rows, int64_t count, int64_t m, uint64_t offsets, int base);
int csr_to_coo(const Context& context, uint64_t offsets, int64_t count, int64_t m, uint64_t rows, int base);
int csr_to_csc(const Context& context, int64_t m, int64_t n, int64_t count, uint64_t values, uint64_t offsets,
               uint64_t columns, uint64_t to_values, uint64_t to_offsets, uint64_t to_rows, int type,
               int copy, int base, int algorithm, uint64_t);
int sort_coo(const Context& context, bool by_row, int64_t count, uint64_t rows, uint64_t columns, uint64_t P);
template <bool BY_ROW>
int sort_coo(const Context& context, int64_t, int64_t, int64_t count, uint64_t rows, uint64_t columns,
             uint64_t P, uint64_t) {
    return sort_coo(context, BY_ROW, count, rows, columns, P);
}

}  // namespace gpukernel::simgpu_libraries::cusparse
