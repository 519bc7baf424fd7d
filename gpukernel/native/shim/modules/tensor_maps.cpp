// Maps of tensors (driver API chapter "Tensor Map Object Management").  Their encoding is the driver's own,
// so the one that will run the kernels encodes them.
#include <cstring>

#include "shim/memory/memory.h"
#include "shim/transport/request.h"

using namespace gpukernel::shim;
namespace wire = gpukernel::wire;

namespace {

constexpr cuuint32_t MOST_DIMENSIONS = 5;

bool aligned(const CUtensorMap* map) {
    return map && reinterpret_cast<uintptr_t>(map) % alignof(CUtensorMap) == 0;
}

// One of version 0.2 ends the connection at a call that it does not know.
bool older_worker() { return !worker_shares(*context_stack().back()->device); }

template <class Answer>
CUresult answered(Request& request, CUtensorMap* map) {
    if (CUresult error = request.send(); error != CUDA_SUCCESS) return error;
    const auto answer = request.answer<Answer>();
    if (answer.map.size() != sizeof *map) return CUDA_ERROR_UNKNOWN;
    std::memcpy(map, answer.map.data(), sizeof *map);
    return CUDA_SUCCESS;
}

// What both kinds of maps have.
bool fill_in(wire::TensorMapRequest& to, const CUtensorMap* map, cuuint32_t rank, void* address,
             const cuuint64_t* dimensions, const cuuint64_t* strides, const cuuint32_t* steps) {
    if (!aligned(map) || !rank || rank > MOST_DIMENSIONS || !dimensions || (rank > 1 && !strides) || !steps)
        return false;
    to.address = reinterpret_cast<uint64_t>(address);
    to.dimensions.assign(dimensions, dimensions + rank);
    to.strides.assign(strides, strides + rank - 1);
    to.steps.assign(steps, steps + rank);
    return true;
}

}  // namespace

CUresult CUDAAPI cuTensorMapEncodeTiled(CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType,
                                        cuuint32_t tensorRank, void* globalAddress,
                                        const cuuint64_t* globalDim, const cuuint64_t* globalStrides,
                                        const cuuint32_t* boxDim, const cuuint32_t* elementStrides,
                                        CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                        CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill) {
    GPUKERNEL_CURRENT(connection);
    if (older_worker()) return gpukernel::unsupported("a tensor map, by a worker of an older version");
    wire::TensorMapRequest body{
        tensorDataType, interleave, swizzle, l2Promotion, oobFill, 0, {}, {}, {}, {}, {}, {}, 0, 0};
    if (!boxDim ||
        !fill_in(body, tensorMap, tensorRank, globalAddress, globalDim, globalStrides, elementStrides))
        return CUDA_ERROR_INVALID_VALUE;
    body.box.assign(boxDim, boxDim + tensorRank);
    Request request(*connection, body);
    return answered<wire::TensorMapAnswer>(request, tensorMap);
}

CUresult CUDAAPI cuTensorMapEncodeIm2col(CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType,
                                         cuuint32_t tensorRank, void* globalAddress,
                                         const cuuint64_t* globalDim, const cuuint64_t* globalStrides,
                                         const int* pixelBoxLowerCorner, const int* pixelBoxUpperCorner,
                                         cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
                                         const cuuint32_t* elementStrides, CUtensorMapInterleave interleave,
                                         CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
                                         CUtensorMapFloatOOBfill oobFill) {
    GPUKERNEL_CURRENT(connection);
    if (older_worker()) return gpukernel::unsupported("a tensor map, by a worker of an older version");
    wire::TensorMapRequest body{
        tensorDataType,   interleave,     swizzle, l2Promotion, oobFill, 0, {}, {}, {}, {}, {}, {},
        channelsPerPixel, pixelsPerColumn};
    if (!pixelBoxLowerCorner || !pixelBoxUpperCorner || tensorRank < 3 ||
        !fill_in(body, tensorMap, tensorRank, globalAddress, globalDim, globalStrides, elementStrides))
        return CUDA_ERROR_INVALID_VALUE;
    body.lower.assign(pixelBoxLowerCorner, pixelBoxLowerCorner + tensorRank - 2);
    body.upper.assign(pixelBoxUpperCorner, pixelBoxUpperCorner + tensorRank - 2);
    Request request(*connection, body);
    return answered<wire::TensorMapAnswer>(request, tensorMap);
}

CUresult CUDAAPI cuTensorMapReplaceAddress(CUtensorMap* tensorMap, void* globalAddress) {
    GPUKERNEL_CURRENT(connection);
    if (older_worker()) return gpukernel::unsupported("a tensor map, by a worker of an older version");
    if (!aligned(tensorMap)) return CUDA_ERROR_INVALID_VALUE;
    Request request(*connection, wire::TensorMapAddressRequest{
                                     reinterpret_cast<uint64_t>(globalAddress),
                                     {reinterpret_cast<const char*>(tensorMap), sizeof *tensorMap}});
    return answered<wire::TensorMapAddressAnswer>(request, tensorMap);
}
