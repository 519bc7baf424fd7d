// Kernels as CUDA C++ and as OpenCL C read them: what each does is what its name says.
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
#define EXP(x) exp(x)
#define LOG(x) log(x)
#define ROOT(x) sqrt(x)
#define SINE(x) sin(x)
#define COSINE(x) cos(x)
#define LARGER(a, b) fmax(a, b)
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
#define EXP(x) expf(x)
#define LOG(x) logf(x)
#define ROOT(x) sqrtf(x)
#define SINE(x) sinf(x)
#define COSINE(x) cosf(x)
#define LARGER(a, b) fmaxf(a, b)
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

// Rows of 1024 numbers, a block each.
KERNEL softmax(GLOBAL const float* in, GLOBAL float* out, GLOBAL float* unused, int n) {
    SHARED float shared[256];
    int t = THREAD(0), row = BLOCK(0) * n;
    float most = -1e30f, sum = 0;
    for (int i = t; i < n; i += 256) most = LARGER(most, in[row + i]);
    shared[t] = most;
    MEET();
    for (int half_of = 128; half_of > 0; half_of /= 2) {
        if (t < half_of) shared[t] = LARGER(shared[t], shared[t + half_of]);
        MEET();
    }
    most = shared[0];
    MEET();
    for (int i = t; i < n; i += 256) {
        float power = EXP(in[row + i] - most);
        out[row + i] = power;
        sum += power;
    }
    shared[t] = sum;
    MEET();
    for (int half_of = 128; half_of > 0; half_of /= 2) {
        if (t < half_of) shared[t] += shared[t + half_of];
        MEET();
    }
    sum = 1.0f / shared[0];
    for (int i = t; i < n; i += 256) out[row + i] *= sum;
}

// The price of a European option by Black and Scholes, the normal distribution by a polynomial of Abramowitz
// and Stegun.
KERNEL options(GLOBAL const float* in, GLOBAL float* out, GLOBAL float* unused, int n) {
    int i = INDEX(0);
    if (i >= n) return;
    float price = 30.0f + in[i] * in[i], strike = 32.0f, years = 1.0f + 0.1f * in[i] * in[i];
    float spread = 0.3f * ROOT(years), value = 0;
    float d = (LOG(price / strike) + (0.02f + 0.045f) * years) / spread;
    for (int side = 0; side < 2; ++side) {
        float x = side ? d - spread : d, size = x < 0 ? -x : x, k = 1.0f / FUSED(0.2316419f, size, 1.0f);
        float tail =
            k * FUSED(k,
                      FUSED(k, FUSED(k, FUSED(k, 1.330274429f, -1.821255978f), 1.781477937f), -0.356563782f),
                      0.31938153f);
        tail *= 0.39894228f * EXP(-0.5f * x * x);
        float below = x < 0 ? tail : 1.0f - tail;
        value += side ? -strike * EXP(-0.02f * years) * below : price * below;
    }
    out[i] = value;
}

KERNEL transpose(GLOBAL const float* in, GLOBAL float* out, GLOBAL float* unused, int n) {
    SHARED float tile[32][33];
    int x = THREAD(0), y = THREAD(1), column = BLOCK(0) * 32, row = BLOCK(1) * 32;
    for (int j = 0; j < 32; j += 8) tile[y + j][x] = in[(row + y + j) * n + column + x];
    MEET();
    for (int j = 0; j < 32; j += 8) out[(column + y + j) * n + row + x] = tile[x][y + j];
}

// The sums of the first numbers of each block.
KERNEL scan(GLOBAL const float* in, GLOBAL float* out, GLOBAL float* unused, int n) {
    SHARED float sums[256];
    int i = INDEX(0), t = THREAD(0);
    sums[t] = in[i];
    MEET();
    for (int step = 1; step < 256; step *= 2) {
        float before = t >= step ? sums[t - step] : 0.0f;
        MEET();
        sums[t] += before;
        MEET();
    }
    out[i] = sums[t];
}

// Each block's 512 numbers, by Batcher's bitonic network.
KERNEL sorting(GLOBAL const int* in, GLOBAL int* out, GLOBAL float* unused, int n) {
    SHARED int values[512];
    int t = THREAD(0), base = BLOCK(0) * 512;
    values[t] = in[base + t], values[t + 256] = in[base + t + 256];
    for (int size = 2; size <= 512; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            MEET();
            int low = 2 * t - (t & (step - 1)), high = low + step;
            int a = values[low], b = values[high];
            if (((low & size) == 0) == (a > b)) values[low] = b, values[high] = a;
        }
    MEET();
    out[base + t] = values[t], out[base + t + 256] = values[t + 256];
}

// Of each block's 512 complex numbers, by Stockham's order.
KERNEL fourier(GLOBAL const float* in, GLOBAL float* out, GLOBAL float* unused, int n) {
    SHARED float re[2][512];
    SHARED float im[2][512];
    int t = THREAD(0), base = BLOCK(0) * 512, from = 0;
    for (int i = t; i < 512; i += 256) re[0][i] = in[base + i], im[0][i] = in[n + base + i];
    for (int width = 1; width < 512; width *= 2) {
        MEET();
        int k = t & (width - 1), to = 2 * t - k;
        float angle = -3.14159265f * k / width, c = COSINE(angle), s = SINE(angle);
        float ar = re[from][t], ai = im[from][t], br = re[from][t + 256], bi = im[from][t + 256];
        float tr = br * c - bi * s, ti = br * s + bi * c;
        re[1 - from][to] = ar + tr, im[1 - from][to] = ai + ti;
        re[1 - from][to + width] = ar - tr, im[1 - from][to + width] = ai - ti;
        from = 1 - from;
    }
    MEET();
    for (int i = t; i < 512; i += 256) out[base + i] = re[from][i], out[n + base + i] = im[from][i];
}

// A sparse matrix with 16 numbers in each row, times a vector.
KERNEL sparse(GLOBAL const float* numbers, GLOBAL const float* x, GLOBAL float* y, int n) {
    int row = INDEX(0);
    float sum = 0;
    for (int k = 0; k < 16; ++k) {
        int column = (int)(((unsigned)row * 2654435761u + (unsigned)k * 40503u) >> 7) & (n - 1);
        sum = FUSED(numbers[k * n + row], x[column], sum);
    }
    y[row] = sum;
}

// The cheapest way through a grid, 16 rows at a time (after Rodinia's pathfinder).
KERNEL pathfinder(GLOBAL const int* cost, GLOBAL int* out, GLOBAL float* unused, int n) {
    SHARED int before[256];
    int t = THREAD(0), x = BLOCK(0) * 224 + t - 16;
    int inside = x < 0 ? 0 : x >= n ? n - 1 : x;
    int least = cost[inside] & 1023;
    for (int row = 1; row <= 16; ++row) {
        before[t] = least;
        MEET();
        int left = t > 0 ? before[t - 1] : least, right = t < 255 ? before[t + 1] : least;
        least = left < least ? left : least;
        least = right < least ? right : least;
        least += cost[row * n + inside] & 1023;
        MEET();
    }
    if (t >= 16 && t < 240 && x < n) out[x] = least;
}

KERNEL convolution(GLOBAL const float* in, GLOBAL float* out, GLOBAL const float* weights, int n) {
    int x = INDEX(0), y = INDEX(1);
    float sum = 0;
    if (x < 2 || y < 2 || x >= n - 2 || y >= n - 2) return;
    for (int j = 0; j < 5; ++j)
        for (int i = 0; i < 5; ++i) sum = FUSED(weights[5 * j + i], in[(y + j - 2) * n + x + i - 2], sum);
    out[y * n + x] = sum;
}

// The nearest of 16 centres in 16 dimensions (after Rodinia's k-means).
KERNEL nearest(GLOBAL const float* points, GLOBAL int* out, GLOBAL const float* centres, int n) {
    int i = INDEX(0), best = 0;
    float least = 1e30f;
    for (int c = 0; c < 16; ++c) {
        float square = 0;
        for (int d = 0; d < 16; ++d) {
            float apart = points[d * n + i] - centres[c * 16 + d];
            square = FUSED(apart, apart, square);
        }
        if (square < least) least = square, best = c;
    }
    out[i] = best;
}

// A thread has 8 × 8 sums; a block 64 × 64.
KERNEL tiled(GLOBAL const float* a, GLOBAL const float* b, GLOBAL float* c, int n) {
    SHARED float left[8][64];
    SHARED float right[8][64];
    int x = THREAD(0), y = THREAD(1), t = y * 8 + x, row = BLOCK(1) * 64, column = BLOCK(0) * 64;
    float sums[8][8];
    for (int i = 0; i < 8; ++i)
        for (int j = 0; j < 8; ++j) sums[i][j] = 0;
    for (int k = 0; k < n; k += 8) {
        for (int i = 0; i < 8; ++i) {
            left[i][t] = a[(row + t) * n + k + i];
            right[i][t] = b[(k + i) * n + column + t];
        }
        MEET();
        for (int k2 = 0; k2 < 8; ++k2)
            for (int i = 0; i < 8; ++i)
                for (int j = 0; j < 8; ++j)
                    sums[i][j] = FUSED(left[k2][8 * y + i], right[k2][x + 8 * j], sums[i][j]);
        MEET();
    }
    for (int i = 0; i < 8; ++i)
        for (int j = 0; j < 8; ++j) c[(row + 8 * y + i) * n + column + x + 8 * j] = sums[i][j];
}

// A product of bfloat16, two in a word, c = a × bᵀ, summed in single precision: 128 threads have 64 × 64
// sums. CUDA has instructions of tensor cores for it; OpenCL has none.
#define TWO(word) ((word) & (int)0xbfffbfff)
#if defined __OPENCL_VERSION__
KERNEL halves(GLOBAL const int* a, GLOBAL const int* b, GLOBAL float* c, int n) {
    SHARED float left[16][64];
    SHARED float right[16][64];
    int x = THREAD(0), y = THREAD(1), t = y * 16 + x, row = BLOCK(1) * 64, column = BLOCK(0) * 64;
    float sums[8][4];
    for (int i = 0; i < 8; ++i)
        for (int j = 0; j < 4; ++j) sums[i][j] = 0;
    for (int k = 0; k < n / 2; k += 8) {
        for (int i = t; i < 512; i += 128) {
            int one = TWO(a[(row + i / 8) * (n / 2) + k + i % 8]);
            int other = TWO(b[(column + i / 8) * (n / 2) + k + i % 8]);
            left[2 * (i % 8)][i / 8] = as_float(one << 16),
                                  left[2 * (i % 8) + 1][i / 8] = as_float(one & (int)0xffff0000);
            right[2 * (i % 8)][i / 8] = as_float(other << 16);
            right[2 * (i % 8) + 1][i / 8] = as_float(other & (int)0xffff0000);
        }
        MEET();
        for (int k2 = 0; k2 < 16; ++k2)
            for (int i = 0; i < 8; ++i)
                for (int j = 0; j < 4; ++j)
                    sums[i][j] = FUSED(left[k2][y + 8 * i], right[k2][x + 16 * j], sums[i][j]);
        MEET();
    }
    for (int i = 0; i < 8; ++i)
        for (int j = 0; j < 4; ++j) c[(row + y + 8 * i) * n + column + x + 16 * j] = sums[i][j];
}
#else
KERNEL halves(const int* a, const int* b, float* c, int n) {
    int t = threadIdx.y * 16 + threadIdx.x, warp = t / 32, group = t % 32 / 4, part = t % 4, words = n / 2;
    int row = blockIdx.y * 64 + warp / 2 * 32 + group, column = blockIdx.x * 64 + warp % 2 * 32 + group;
    float sums[2][4][4] = {};
    for (int k = part; k < words; k += 8) {
        int left[2][4], right[4][2];
        for (int i = 0; i < 2; ++i)
            for (int j = 0; j < 4; ++j)
                left[i][j] = TWO(a[(row + 16 * i + j % 2 * 8) * words + k + j / 2 * 4]);
        for (int i = 0; i < 4; ++i)
            for (int j = 0; j < 2; ++j) right[i][j] = TWO(b[(column + 8 * i) * words + k + 4 * j]);
        for (int i = 0; i < 2; ++i)
            for (int j = 0; j < 4; ++j)
                asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                    : "+f"(sums[i][j][0]), "+f"(sums[i][j][1]), "+f"(sums[i][j][2]), "+f"(sums[i][j][3])
                    : "r"(left[i][0]), "r"(left[i][1]), "r"(left[i][2]), "r"(left[i][3]), "r"(right[j][0]),
                      "r"(right[j][1]));
    }
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j)
            for (int e = 0; e < 4; ++e)
                c[(row + 16 * i + e / 2 * 8) * n + column - group + 8 * j + 2 * part + e % 2] = sums[i][j][e];
}
#endif
