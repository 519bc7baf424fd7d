// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011), and two uses.
__device__ uint4 philox(uint4 counter, uint2 key) {
    for (int round = 0; round < 10; ++round) {
        unsigned high0 = __umulhi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
        unsigned high1 = __umulhi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
        counter = make_uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key.x += 0x9E3779B9u, key.y += 0xBB67AE85u;
    }
    return counter;
}
__device__ float uniform(unsigned bits) { return (bits >> 8) * 0x1p-24f + 0x1p-25f; }  // inside (0, 1)

extern "C" __global__ void random_bits(uint4* out, uint4 counter, uint2 key) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    counter.x += i;
    out[i] = philox(counter, key);
}

extern "C" __global__ void points_in_circle(unsigned long long* inside, int rounds, uint2 key) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, count = 0;
    for (int r = 0; r < rounds; ++r) {
        uint4 bits = philox(make_uint4(i, r, 0, 0), key);
        float a = uniform(bits.x), b = uniform(bits.y), c = uniform(bits.z), d = uniform(bits.w);
        count += (a * a + b * b < 1) + (c * c + d * d < 1);
    }
    for (int step = 16; step; step /= 2) count += __shfl_down_sync(0xffffffffu, count, step);
    if ((threadIdx.x & 31) == 0) atomicAdd(inside, (unsigned long long)count);
}

extern "C" __global__ void european_call(double* sum, int rounds, float spot, float strike, float rate, float volatility,
                                         float years, uint2 key) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    float drift = (rate - 0.5f * volatility * volatility) * years, width = volatility * sqrtf(years);
    double total = 0;
    for (int r = 0; r < rounds; ++r) {
        uint4 bits = philox(make_uint4(i, r, 1, 0), key);
        float radius = sqrtf(-2 * logf(uniform(bits.x))), sine, cosine;
        sincospif(2 * uniform(bits.y), &sine, &cosine);
        total += fmaxf(spot * expf(drift + width * radius * cosine) - strike, 0.0f);
        total += fmaxf(spot * expf(drift + width * radius * sine) - strike, 0.0f);
    }
    atomicAdd(sum, total);
}
