// Radix-2 Stockham transform of N points in shared memory, one transform a block, forwards and back.
template <int N>
__device__ void transform(float2* data, float direction) {
    __shared__ float2 ping[N], pong[N];
    float2 *from = ping, *to = pong;
    float2* line = data + blockIdx.x * N;
    for (int i = threadIdx.x; i < N; i += blockDim.x) from[i] = line[i];
    __syncthreads();
    for (int half = N / 2, stride = 1; half >= 1; half /= 2, stride *= 2) {
        for (int t = threadIdx.x; t < N / 2; t += blockDim.x) {
            int p = t / stride, q = t % stride;
            float sine, cosine;
            sincospif(direction * p / half, &sine, &cosine);
            float2 a = from[q + stride * p], b = from[q + stride * (p + half)];
            float2 d = make_float2(a.x - b.x, a.y - b.y);
            to[q + stride * 2 * p] = make_float2(a.x + b.x, a.y + b.y);
            to[q + stride * (2 * p + 1)] = make_float2(d.x * cosine - d.y * sine, d.x * sine + d.y * cosine);
        }
        __syncthreads();
        float2* other = from;
        from = to, to = other;
    }
    for (int i = threadIdx.x; i < N; i += blockDim.x) line[i] = from[i];
}

extern "C" __global__ void fft_1024(float2* data, float direction) { transform<1024>(data, direction); }
extern "C" __global__ void fft_64(float2* data, float direction) { transform<64>(data, direction); }
