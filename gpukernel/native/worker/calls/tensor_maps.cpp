// Maps of tensors (driver API chapter "Tensor Map Object Management"): the device's own driver encodes them.
#include <cstring>

#include "worker/session/session.h"

namespace gpukernel::worker {

namespace {

constexpr size_t MOST_DIMENSIONS = 5;

std::string_view bytes_of(const CUtensorMap& map) {
    return {reinterpret_cast<const char*>(&map), sizeof map};
}

}  // namespace

CUresult serve_tensor_map(Session& session, Reader& in, Writer& out) {
    const auto request = wire::TensorMapRequest::read(in);
    const size_t rank = request.dimensions.size();
    const bool tiled = !request.box.empty();
    if (in.failed() || rank == 0 || rank > MOST_DIMENSIONS || request.strides.size() != rank - 1 ||
        request.steps.size() != rank || (tiled && request.box.size() != rank) ||
        (!tiled && (rank < 3 || request.lower.size() != rank - 2 || request.upper.size() != rank - 2)))
        return CUDA_ERROR_INVALID_VALUE;
    const auto type = static_cast<CUtensorMapDataType>(request.type);
    const auto interleave = static_cast<CUtensorMapInterleave>(request.interleave);
    const auto swizzle = static_cast<CUtensorMapSwizzle>(request.swizzle);
    const auto promotion = static_cast<CUtensorMapL2promotion>(request.promotion);
    const auto fill = static_cast<CUtensorMapFloatOOBfill>(request.fill);
    const auto count = static_cast<cuuint32_t>(rank);
    void* const address = reinterpret_cast<void*>(request.address);
    Driver& cuda = session.cuda();
    if (tiled ? !cuda.cuTensorMapEncodeTiled : !cuda.cuTensorMapEncodeIm2col) return CUDA_ERROR_NOT_SUPPORTED;
    CUtensorMap map{};
    const CUresult result =
        tiled ? cuda.cuTensorMapEncodeTiled(&map, type, count, address, request.dimensions.data(),
                                            request.strides.data(), request.box.data(), request.steps.data(),
                                            interleave, swizzle, promotion, fill)
              : cuda.cuTensorMapEncodeIm2col(&map, type, count, address, request.dimensions.data(),
                                             request.strides.data(), request.lower.data(),
                                             request.upper.data(), request.channels, request.pixels,
                                             request.steps.data(), interleave, swizzle, promotion, fill);
    if (result == CUDA_SUCCESS) wire::TensorMapAnswer{bytes_of(map)}.write(out);
    return result;
}

CUresult serve_tensor_map_address(Session& session, Reader& in, Writer& out) {
    const auto request = wire::TensorMapAddressRequest::read(in);
    CUtensorMap map;
    if (in.failed() || request.map.size() != sizeof map) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(&map, request.map.data(), sizeof map);
    if (!session.cuda().cuTensorMapReplaceAddress) return CUDA_ERROR_NOT_SUPPORTED;
    const CUresult result =
        session.cuda().cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(request.address));
    if (result == CUDA_SUCCESS) wire::TensorMapAddressAnswer{bytes_of(map)}.write(out);
    return result;
}

}  // namespace gpukernel::worker
