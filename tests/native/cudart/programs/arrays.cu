// Arrays and copies of every shape, textures and surfaces.
#include <vector>

#include "check.h"

__global__ void sample(cudaTextureObject_t texture, float* to, int width, int height) {
    const int x = threadIdx.x, y = blockIdx.x;
    if (x < width) to[y * width + x] = tex2D<float>(texture, (x + 0.5f) / width, (y + 0.5f) / height);
}
__global__ void linear(cudaTextureObject_t texture, int* to) { to[threadIdx.x] = tex1Dfetch<int>(texture, threadIdx.x) + 1; }
__global__ void paint(cudaSurfaceObject_t surface, int width) {
    surf2Dwrite<float>(threadIdx.x + 100.f * blockIdx.x, surface, threadIdx.x * 4, blockIdx.x);
}

int main() {
    const int width = 24, height = 5;
    std::vector<float> host(width * height), read(width * height);
    for (int i = 0; i < width * height; ++i) host[i] = i;
    const cudaChannelFormatDesc floats = cudaCreateChannelDesc<float>();
    cudaArray_t array, other;
    OK(cudaMallocArray(&array, &floats, width, height, cudaArraySurfaceLoadStore));
    OK(cudaMallocArray(&other, &floats, width, height));
    OK(cudaMemcpy2DToArray(array, 0, 0, host.data(), width * 4, width * 4, height, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2DArrayToArray(other, 0, 0, array, 0, 0, width * 4, height));
    OK(cudaMemcpy2DFromArray(read.data(), width * 4, other, 0, 0, width * 4, height, cudaMemcpyDeviceToHost));
    CHECK(read == host);
    float part[2];
    OK(cudaMemcpy2DFromArray(part, 8, other, 4 * 4, 3, 8, 1, cudaMemcpyDeviceToHost));
    CHECK(part[0] == 3 * width + 4 && part[1] == part[0] + 1);
    cudaChannelFormatDesc described;
    cudaExtent extent;
    unsigned flags;
    OK(cudaArrayGetInfo(&described, &extent, &flags, array));
    CHECK(described.x == 32 && described.y == 0 && described.f == cudaChannelFormatKindFloat);
    CHECK(extent.width == width && extent.height == height && flags == cudaArraySurfaceLoadStore);

    cudaResourceDesc resource{};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureDesc how{};
    how.normalizedCoords = 1;
    how.readMode = cudaReadModeElementType;
    cudaTextureObject_t texture;
    OK(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
    float* to;
    OK(cudaMalloc(&to, width * height * 4));
    sample<<<height, 32>>>(texture, to, width, height);
    OK(cudaMemcpy(read.data(), to, width * height * 4, cudaMemcpyDeviceToHost));
    CHECK(read == host);
    cudaTextureDesc told;
    OK(cudaGetTextureObjectTextureDesc(&told, texture));
    CHECK(told.normalizedCoords == 1 && told.readMode == cudaReadModeElementType);
    OK(cudaDestroyTextureObject(texture));

    cudaSurfaceObject_t surface;
    OK(cudaCreateSurfaceObject(&surface, &resource));
    paint<<<height, width>>>(surface, width);
    OK(cudaMemcpy2DFromArray(read.data(), width * 4, array, 0, 0, width * 4, height, cudaMemcpyDeviceToHost));
    for (int y = 0; y < height; ++y)
        for (int x = 0; x < width; ++x) CHECK(read[y * width + x] == x + 100.f * y);

    int numbers[32], *of_device, *results;
    for (int i = 0; i < 32; ++i) numbers[i] = i * i;
    OK(cudaMalloc(&of_device, sizeof numbers));
    OK(cudaMalloc(&results, sizeof numbers));
    OK(cudaMemcpy(of_device, numbers, sizeof numbers, cudaMemcpyHostToDevice));
    cudaResourceDesc plain{};
    plain.resType = cudaResourceTypeLinear;
    plain.res.linear.devPtr = of_device;
    plain.res.linear.desc = cudaCreateChannelDesc<int>();
    plain.res.linear.sizeInBytes = sizeof numbers;
    cudaTextureDesc as_is{};
    OK(cudaCreateTextureObject(&texture, &plain, &as_is, nullptr));
    linear<<<1, 32>>>(texture, results);
    OK(cudaMemcpy(numbers, results, sizeof numbers, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 32; ++i) CHECK(numbers[i] == i * i + 1);

    // Three dimensions, with a pitch, and back.
    cudaPitchedPtr pitched;
    const cudaExtent box = make_cudaExtent(20, 4, 3);
    OK(cudaMalloc3D(&pitched, box));
    CHECK(pitched.pitch >= 20 && pitched.ysize == 4);
    OK(cudaMemset3D(pitched, 7, box));
    std::vector<char> bytes(20 * 4 * 3, 1), back(20 * 4 * 3);
    cudaMemcpy3DParms copy{};
    copy.srcPtr = make_cudaPitchedPtr(bytes.data(), 20, 20, 4);
    copy.dstPtr = pitched;
    copy.dstPos = make_cudaPos(0, 0, 1);
    copy.extent = make_cudaExtent(20, 4, 2);
    copy.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&copy));
    cudaMemcpy3DParms down{};
    down.srcPtr = pitched;
    down.dstPtr = make_cudaPitchedPtr(back.data(), 20, 20, 4);
    down.extent = box;
    down.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&down));
    for (int i = 0; i < 240; ++i) CHECK(back[i] == (i < 80 ? 7 : 1));
    cudaArray_t cube;
    OK(cudaMalloc3DArray(&cube, &floats, make_cudaExtent(4, 3, 2)));
    cudaMemcpy3DParms up{};
    up.srcPtr = make_cudaPitchedPtr(host.data(), 16, 4, 3);
    up.dstArray = cube;
    up.extent = make_cudaExtent(4, 3, 2);
    up.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&up));
    cudaMemcpy3DParms one{};
    float element;
    one.srcArray = cube;
    one.srcPos = make_cudaPos(1, 2, 1);
    one.dstPtr = make_cudaPitchedPtr(&element, 4, 1, 1);
    one.extent = make_cudaExtent(1, 1, 1);
    one.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&one));
    CHECK(element == 12 + 2 * 4 + 1);
    std::vector<float> row(6);
    char* rows;
    size_t pitch;
    OK(cudaMallocPitch(&rows, &pitch, 8, 3));
    OK(cudaMemset2D(rows, pitch, 0, 8, 3));
    OK(cudaMemcpy2D(rows + 4, pitch, host.data(), 4, 4, 3, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2D(row.data(), 8, rows, pitch, 8, 3, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 3; ++i) CHECK(row[2 * i] == 0 && row[2 * i + 1] == i);
    cudaMipmappedArray_t levels;
    OK(cudaMallocMipmappedArray(&levels, &floats, make_cudaExtent(8, 8, 0), 3));
    cudaArray_t level;
    OK(cudaGetMipmappedArrayLevel(&level, levels, 1));
    OK(cudaArrayGetInfo(&described, &extent, &flags, level));
    CHECK(extent.width == 4);
    OK(cudaFreeMipmappedArray(levels));
    OK(cudaFreeArray(array));
    std::puts("ok");
}
