// Seven kernels as CUDA C++ and as OpenCL C read them: what each does is what its name says.
#if defined __OPENCL_VERSION__
#define KERNEL __kernel void
#define GLOBAL __global
#define SHARED __local
#define THREAD(d) ((int)get_local_id(d))
#define BLOCK(d) ((int)get_group_id(d))
#define THREADS(d) ((int)get_local_size(d))
#define MEET() barrier(CLK_LOCAL_MEM_FENCE)
#define ADD_SHARED(at, what) atomic_add(at, what)
#define ADD_GLOBAL(at, what) atomic_add(at, what)
#define INVERSE_ROOT(x) rsqrt(x)
#define FUSED(a, b, c) fma(a, b, c)
#else
#define KERNEL extern "C" __global__ void
#define GLOBAL
#define SHARED __shared__
#define SIDE(v, d) (int)((d) == 0 ? v.x : (d) == 1 ? v.y : v.z)
#define THREAD(d) SIDE(threadIdx, d)
#define BLOCK(d) SIDE(blockIdx, d)
#define THREADS(d) SIDE(blockDim, d)
#define MEET() __syncthreads()
#define ADD_SHARED(at, what) atomicAdd(at, what)
#define ADD_GLOBAL(at, what) atomicAdd(at, what)
#define INVERSE_ROOT(x) rsqrtf(x)
#define FUSED(a, b, c) fmaf(a, b, c)
#endif
#define INDEX(d) (BLOCK(d) * THREADS(d) + THREAD(d))
#define TILE 16

KERNEL saxpy(GLOBAL const float* x, GLOBAL float* y, GLOBAL float* unused, int n) {
    int i = INDEX(0);
    if (i < n) y[i] = FUSED(2.0f, x[i], y[i]);
}

KERNEL stencil(GLOBAL const float* in, GLOBAL float* out, GLOBAL float* unused, int n) {
    int x = INDEX(0), y = INDEX(1);
    if (x < 1 || y < 1 || x >= n - 1 || y >= n - 1) return;
    int at = y * n + x;
    out[at] = 0.5f * in[at] + 0.125f * (in[at - 1] + in[at + 1] + in[at - n] + in[at + n]);
}

KERNEL bodies(GLOBAL const float* place, GLOBAL float* force, GLOBAL float* unused, int n) {
    int i = INDEX(0);
    if (i >= n) return;
    float x = place[i], y = place[n + i], z = place[2 * n + i], fx = 0, fy = 0, fz = 0;
    for (int j = 0; j < n; ++j) {
        float dx = place[j] - x, dy = place[n + j] - y, dz = place[2 * n + j] - z;
        float square = FUSED(dx, dx, FUSED(dy, dy, FUSED(dz, dz, 0.01f)));
        float inverse = INVERSE_ROOT(square), cube = inverse * inverse * inverse;
        fx = FUSED(dx, cube, fx), fy = FUSED(dy, cube, fy), fz = FUSED(dz, cube, fz);
    }
    force[i] = fx, force[n + i] = fy, force[2 * n + i] = fz;
}

KERNEL matmul(GLOBAL const float* a, GLOBAL const float* b, GLOBAL float* c, int n) {
    SHARED float left[TILE][TILE];
    SHARED float right[TILE][TILE];
    int x = THREAD(0), y = THREAD(1), column = INDEX(0), row = INDEX(1);
    float sum = 0;
    for (int t = 0; t < n; t += TILE) {
        left[y][x] = a[row * n + t + x];
        right[y][x] = b[(t + y) * n + column];
        MEET();
        for (int k = 0; k < TILE; ++k) sum = FUSED(left[y][k], right[k][x], sum);
        MEET();
    }
    c[row * n + column] = sum;
}

KERNEL histogram(GLOBAL const int* values, GLOBAL int* counts, GLOBAL float* unused, int n) {
    SHARED int mine[256];
    for (int b = THREAD(0); b < 256; b += THREADS(0)) mine[b] = 0;
    MEET();
    for (int i = INDEX(0); i < n; i += 64 * THREADS(0)) ADD_SHARED(&mine[values[i] & 255], 1);
    MEET();
    for (int b = THREAD(0); b < 256; b += THREADS(0)) ADD_GLOBAL(&counts[b], mine[b]);
}

KERNEL reduction(GLOBAL const float* in, GLOBAL float* out, GLOBAL float* unused, int n) {
    SHARED float sums[256];
    int i = INDEX(0), t = THREAD(0);
    sums[t] = i < n ? in[i] : 0.0f;
    MEET();
    for (int half_of = THREADS(0) / 2; half_of > 0; half_of /= 2) {
        if (t < half_of) sums[t] += sums[t + half_of];
        MEET();
    }
    if (t == 0) out[BLOCK(0)] = sums[0];
}

KERNEL mandelbrot(GLOBAL int* out, GLOBAL int* unused, GLOBAL float* neither, int n) {
    int px = INDEX(0), py = INDEX(1);
    if (px >= n || py >= n) return;
    float cx = -2.0f + px * (3.0f / n), cy = -1.5f + py * (3.0f / n), x = 0, y = 0;
    int count = 0;
    while (count < 256 && x * x + y * y < 4.0f) {
        float next = x * x - y * y + cx;
        y = 2.0f * x * y + cy;
        x = next;
        ++count;
    }
    out[py * n + px] = count;
}
