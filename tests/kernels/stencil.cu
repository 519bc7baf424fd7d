// Heat flow: 2-D with a tile and its halo in shared memory, 3-D with a column of z in registers.
#define T 16

extern "C" __global__ void heat_2d(const float* in, float* out, int width, int height, float rate) {
    __shared__ float tile[T + 2][T + 2];
    int x = blockIdx.x * T + threadIdx.x, y = blockIdx.y * T + threadIdx.y;
    int cx = min(x, width - 1), cy = min(y, height - 1), tx = threadIdx.x + 1, ty = threadIdx.y + 1;
    tile[ty][tx] = in[cy * width + cx];
    if (threadIdx.x == 0) tile[ty][0] = in[cy * width + max(cx - 1, 0)];
    if (threadIdx.x == T - 1) tile[ty][T + 1] = in[cy * width + min(cx + 1, width - 1)];
    if (threadIdx.y == 0) tile[0][tx] = in[max(cy - 1, 0) * width + cx];
    if (threadIdx.y == T - 1) tile[T + 1][tx] = in[min(cy + 1, height - 1) * width + cx];
    __syncthreads();
    if (x >= width || y >= height) return;
    if (x == 0 || y == 0 || x == width - 1 || y == height - 1) {
        out[y * width + x] = tile[ty][tx];
        return;
    }
    float around = tile[ty - 1][tx] + tile[ty + 1][tx] + tile[ty][tx - 1] + tile[ty][tx + 1];
    out[y * width + x] = tile[ty][tx] + rate * (around - 4 * tile[ty][tx]);
}

extern "C" __global__ void laplace_3d(const double* __restrict__ in, double* out, int nx, int ny, int nz) {
    int x = blockIdx.x * blockDim.x + threadIdx.x + 1, y = blockIdx.y * blockDim.y + threadIdx.y + 1;
    if (x >= nx - 1 || y >= ny - 1) return;
    long long plane = (long long)nx * ny, at = (long long)y * nx + x;
    double below = in[at], here = in[at + plane];
    for (int z = 1; z < nz - 1; ++z) {
        at += plane;
        double above = in[at + plane];
        out[at] = below + above + in[at - 1] + in[at + 1] + in[at - nx] + in[at + nx] - 6 * here;
        below = here, here = above;
    }
}
