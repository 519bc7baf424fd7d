// One kernel for each way to read a texture or to reach a surface; results are four numbers a thread.
#define AT const int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return
using uchar = unsigned char;
#define COORDINATES const float *x, const float *y, const float *z, const int *layer

#define SAMPLE(name, type, fetch) \
    extern "C" __global__ void name(cudaTextureObject_t t, COORDINATES, type* out, int n) { AT; out[i] = fetch; }

SAMPLE(tex_1d, float4, tex1D<float4>(t, x[i]))
SAMPLE(tex_2d, float4, (tex2D<float4>(t, x[i], y[i])))
SAMPLE(tex_3d, float4, (tex3D<float4>(t, x[i], y[i], z[i])))
SAMPLE(tex_a1d, float4, (tex1DLayered<float4>(t, x[i], layer[i])))
SAMPLE(tex_a2d, float4, (tex2DLayered<float4>(t, x[i], y[i], layer[i])))
SAMPLE(tex_cube, float4, (texCubemap<float4>(t, x[i], y[i], z[i])))
SAMPLE(tex_acube, float4, (texCubemapLayered<float4>(t, x[i], y[i], z[i], layer[i])))
SAMPLE(tex_2d_int, int4, (tex2D<int4>(t, x[i], y[i])))
SAMPLE(tex_2d_unsigned, uint4, (tex2D<uint4>(t, x[i], y[i])))
SAMPLE(fetch_float, float4, tex1Dfetch<float4>(t, layer[i]))
SAMPLE(fetch_int, int4, tex1Dfetch<int4>(t, layer[i]))
SAMPLE(level_2d, float4, (tex2DLod<float4>(t, x[i], y[i], z[i])))
SAMPLE(level_a2d, float4, (tex2DLayeredLod<float4>(t, x[i], y[i], layer[i], z[i])))
SAMPLE(gradient_2d, float4, (tex2DGrad<float4>(t, x[i], y[i], make_float2(z[i], 0), make_float2(0, z[i] / 4))))
SAMPLE(gather_r, float4, (tex2Dgather<float4>(t, x[i], y[i], 0)))
SAMPLE(gather_g, float4, (tex2Dgather<float4>(t, x[i], y[i], 1)))
SAMPLE(gather_b, float4, (tex2Dgather<float4>(t, x[i], y[i], 2)))
SAMPLE(gather_a, float4, (tex2Dgather<float4>(t, x[i], y[i], 3)))
extern "C" __global__ void resident_2d(cudaTextureObject_t t, COORDINATES, float4* out, int n) {
    AT;
    bool resident = false;
    const float4 v = tex2D<float4>(t, x[i], y[i], &resident);
    out[i] = resident ? v : make_float4(-1, -1, -1, -1);
}
// Threads of one warp with textures of their own, some of them asleep.
extern "C" __global__ void two_textures(cudaTextureObject_t one, cudaTextureObject_t two, COORDINATES, float4* out, int n) {
    AT;
    if (i % 3) out[i] = tex2D<float4>(i % 2 ? one : two, x[i], y[i]);
}

// --- surfaces: `at` is in elements ---

template <class T>
__device__ void shift_rows(cudaSurfaceObject_t from, cudaSurfaceObject_t to, int width, int height) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x < width) surf2Dwrite(surf2Dread<T>(from, x * (int)sizeof(T), y), to, x * (int)sizeof(T), (y + 1) % height);
}
#define SHIFT(type) \
    extern "C" __global__ void shift_##type(cudaSurfaceObject_t a, cudaSurfaceObject_t b, int w, int h) { shift_rows<type>(a, b, w, h); }
SHIFT(uchar)
SHIFT(ushort2)
SHIFT(float)
SHIFT(uint2)
SHIFT(float4)
extern "C" __global__ void clamped_reads(cudaSurfaceObject_t s, int* out, int n) {
    AT;
    out[i] = surf2Dread<int>(s, (i % 8 - 2) * 4, i / 8 - 2, cudaBoundaryModeClamp);
}
extern "C" __global__ void zero_reads(cudaSurfaceObject_t s, int* out, int n) {
    AT;
    out[i] = surf2Dread<int>(s, (i % 8 - 2) * 4, i / 8 - 2, cudaBoundaryModeZero);
    surf2Dwrite(7, s, (i % 8 - 2) * 4, i / 8 + 100, cudaBoundaryModeZero);  // nowhere
}
extern "C" __global__ void numbered(cudaSurfaceObject_t one, cudaSurfaceObject_t three, cudaSurfaceObject_t layers, cudaSurfaceObject_t cube) {
    const int x = threadIdx.x;  // 4 threads; shapes of 4, 4 x 3 x 2, 4 x 3 with 2 layers, a cube of 4 x 4
    surf1Dwrite(x, one, 4 * x);
    for (int y = 0; y < 3; ++y)
        for (int z = 0; z < 2; ++z) {
            surf3Dwrite(x + 10 * y + 100 * z, three, 4 * x, y, z);
            surf2DLayeredwrite(surf3Dread<int>(three, 4 * x, y, z) + 1000, layers, 4 * x, y, z);
        }
    for (int y = 0; y < 4; ++y)
        for (int face = 0; face < 6; ++face) surfCubemapwrite(x + 10 * y + 100 * face, cube, 4 * x, y, face);
}
extern "C" __global__ void reductions(cudaSurfaceObject_t s) {
    const int row = 0, value = threadIdx.x;
    asm volatile("sured.b.add.2d.u32.trap [%0, {%1, %2}], %3;" ::"l"(s), "r"(0), "r"(row), "r"(value));
    asm volatile("sured.b.min.2d.s32.trap [%0, {%1, %2}], %3;" ::"l"(s), "r"(4), "r"(row), "r"(-value));
    asm volatile("sured.b.max.2d.s32.clamp [%0, {%1, %2}], %3;" ::"l"(s), "r"(8), "r"(row), "r"(value));
    asm volatile("sured.b.or.2d.b32.zero [%0, {%1, %2}], %3;" ::"l"(s), "r"(12), "r"(row), "r"(1 << value % 32));
    asm volatile("sured.b.or.2d.b32.zero [%0, {%1, %2}], %3;" ::"l"(s), "r"(16), "r"(row), "r"(-1));
}
extern "C" __global__ void questions(cudaTextureObject_t t, cudaSurfaceObject_t s, int* out) {
    asm("txq.width.b32 %0, [%1];" : "=r"(out[0]) : "l"(t));
    asm("txq.height.b32 %0, [%1];" : "=r"(out[1]) : "l"(t));
    asm("txq.depth.b32 %0, [%1];" : "=r"(out[2]) : "l"(t));
    asm("txq.normalized_coords.b32 %0, [%1];" : "=r"(out[3]) : "l"(t));
    asm("txq.channel_data_type.b32 %0, [%1];" : "=r"(out[4]) : "l"(t));
    asm("txq.level.width.b32 %0, [%1], 2;" : "=r"(out[5]) : "l"(t));
    asm("suq.width.b32 %0, [%1];" : "=r"(out[6]) : "l"(s));
    asm("suq.height.b32 %0, [%1];" : "=r"(out[7]) : "l"(s));
    asm("suq.channel_order.b32 %0, [%1];" : "=r"(out[8]) : "l"(s));
}
extern "C" __global__ void halves(cudaTextureObject_t t, COORDINATES, unsigned short* out, int n) {
    AT;
    unsigned short r, g, b, a;
    asm("tex.2d.v4.f16.f32 {%0, %1, %2, %3}, [%4, {%5, %6}];" : "=h"(r), "=h"(g), "=h"(b), "=h"(a) : "l"(t), "f"(x[i]), "f"(y[i]));
    out[4 * i] = r, out[4 * i + 1] = g, out[4 * i + 2] = b, out[4 * i + 3] = a;
}

// --- what goes wrong ---

extern "C" __global__ void beyond_the_surface(cudaTextureObject_t, cudaSurfaceObject_t s) {
    surf2Dwrite(1, s, 4 * (int)threadIdx.x, 2);
}
extern "C" __global__ void no_texture(cudaTextureObject_t t, cudaSurfaceObject_t) {
    if (tex2D<float>(threadIdx.x == 3 ? 0x123456ull : t, 0, 0) == 12345.f) asm("trap;");
}
extern "C" __global__ void surface_as_texture(cudaTextureObject_t, cudaSurfaceObject_t s) {
    if (tex2D<float>(s, 0, 0) == 12345.f) asm("trap;");
}
