// Occupancy of kernels: one question about blocks is answered for all smaller ones, too.
#include "worker/session/session.h"

namespace gpukernel::worker {

namespace {
constexpr int MOST_THREADS = 1024;  // of a block, on every device so far

// Who looks for the best block asks for one size after the other, from the largest down.
CUresult active_blocks(Session& session, Reader& in, Writer& out, bool with_flags) {
    CUfunction function;
    if (!session.handle(in.get<uint64_t>(), Kind::function, function)) return CUDA_ERROR_INVALID_HANDLE;
    const int largest = in.get<int>();
    const auto shared = in.get<size_t>();
    const unsigned flags = with_flags ? in.get<unsigned>() : CU_OCCUPANCY_DEFAULT;
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    const auto ask = [&](int threads) {
        int blocks = 0;
        const CUresult result = session.cuda().cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            &blocks, function, threads, shared, flags);
        if (result == CUDA_SUCCESS) out.put(blocks);
        return result;
    };
    const CUresult result = ask(largest);
    if (result == CUDA_SUCCESS && largest <= MOST_THREADS && largest % wire::WARP == 0)
        for (int threads = largest - wire::WARP; threads > 0; threads -= wire::WARP)
            if (ask(threads) != CUDA_SUCCESS) break;
    return result;
}
}  // namespace

CUresult serve_cuOccupancyMaxActiveBlocksPerMultiprocessor(Session& session, Reader& in, Writer& out) {
    return active_blocks(session, in, out, false);
}
CUresult serve_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(Session& session, Reader& in,
                                                                    Writer& out) {
    return active_blocks(session, in, out, true);
}

CUresult serve_best_block_size(Session& session, Reader& in, Writer& out) {
    const auto request = wire::BestBlockSizeRequest::read(in);
    CUfunction function;
    if (in.failed() || !session.handle(request.function, Kind::function, function))
        return CUDA_ERROR_INVALID_HANDLE;
    int grid = 0, block = 0;
    CUresult result = session.cuda().cuOccupancyMaxPotentialBlockSizeWithFlags(
        &grid, &block, function, nullptr, request.shared, request.limit, 0);
    if (result == CUDA_SUCCESS) wire::BestBlockSizeAnswer{grid, block}.write(out);
    return result;
}

}  // namespace gpukernel::worker
