// All pairs with softening, a tile of bodies in shared memory at a time; x, y, z, mass.
#define TILE 128

extern "C" __global__ void accelerate(const float4* bodies, float4* acceleration, int n, float softening) {
    __shared__ float4 tile[TILE];
    int i = blockIdx.x * TILE + threadIdx.x;
    float4 me = i < n ? bodies[i] : make_float4(0, 0, 0, 0);
    float ax = 0, ay = 0, az = 0;
    for (int base = 0; base < n; base += TILE) {
        int j = base + threadIdx.x;
        tile[threadIdx.x] = j < n ? bodies[j] : make_float4(0, 0, 0, 0);
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < TILE; ++k) {
            float dx = tile[k].x - me.x, dy = tile[k].y - me.y, dz = tile[k].z - me.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + softening * softening);
            float pull = tile[k].w * inverse * inverse * inverse;
            ax += pull * dx, ay += pull * dy, az += pull * dz;
        }
        __syncthreads();
    }
    if (i < n) acceleration[i] = make_float4(ax, ay, az, 0);
}
