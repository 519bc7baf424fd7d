// y = A x with A in compressed sparse rows: a thread a row, and a warp a row.
extern "C" __global__ void by_thread(const int* first, const int* column, const double* value, const double* x,
                                     double* y, int rows) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    double sum = 0;
    for (int k = first[row]; k < first[row + 1]; ++k) sum += value[k] * x[column[k]];
    y[row] = sum;
}

extern "C" __global__ void by_warp(const int* first, const int* column, const double* value, const double* x,
                                   double* y, int rows) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x & 31;
    if (row >= rows) return;
    double sum = 0;
    for (int k = first[row] + lane; k < first[row + 1]; k += 32) sum += __ldg(&value[k]) * __ldg(&x[column[k]]);
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) y[row] = sum;
}
