// Facts of kernels that programs ask for one by one, all of them before a first launch: one question for an
// attribute is answered for all, one for the occupancy of a block for smaller blocks, too.
#include "worker/session/session.h"

namespace gpukernel::worker {

namespace {
constexpr int MOST_THREADS = 1024, WARP = 32;  // on every device so far

// What `ask` says of `first`, and of those behind it that it knows, to `end`.
template <class Ask>
CUresult answer_all(Writer& out, int first, int behind, int end, int step, Ask ask) {
    int answer = 0;
    const CUresult result = ask(&answer, first);
    if (result != CUDA_SUCCESS) return result;
    out.put(answer);
    for (int value = behind; value != end; value += step)
        if (value != first && ask(&answer, value) == CUDA_SUCCESS)
            out.put(wire::OtherAnswer{static_cast<uint32_t>(value), answer});
    return CUDA_SUCCESS;
}

CUresult blocks(Session& session, Reader& in, Writer& out, bool with_flags) {
    CUfunction function;
    if (!session.handle(in.get<uint64_t>(), Kind::function, function)) return CUDA_ERROR_INVALID_HANDLE;
    const int threads = in.get<int>();
    const auto shared = in.get<size_t>();
    const unsigned flags = with_flags ? in.get<unsigned>() : CU_OCCUPANCY_DEFAULT;
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    // Who looks for the best block goes down in warps.
    const bool searches = threads > 0 && threads <= MOST_THREADS && threads % WARP == 0;
    return answer_all(out, threads, searches ? threads - WARP : 0, 0, -WARP, [&](int* answer, int each) {
        return session.cuda().cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(answer, function, each,
                                                                                   shared, flags);
    });
}

template <class Ask>
CUresult attributes(Writer& out, CUfunction_attribute attribute, Ask ask) {
    return answer_all(out, attribute, 0, CU_FUNC_ATTRIBUTE_MAX, 1, [&](int* answer, int each) {
        return ask(answer, static_cast<CUfunction_attribute>(each));
    });
}
}  // namespace

CUresult serve_cuOccupancyMaxActiveBlocksPerMultiprocessor(Session& session, Reader& in, Writer& out) {
    return blocks(session, in, out, false);
}
CUresult serve_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(Session& session, Reader& in,
                                                                    Writer& out) {
    return blocks(session, in, out, true);
}

CUresult serve_cuFuncGetAttribute(Session& session, Reader& in, Writer& out) {
    const auto attribute = in.get<CUfunction_attribute>();
    CUfunction function;
    if (!session.handle(in.get<uint64_t>(), Kind::function, function)) return CUDA_ERROR_INVALID_HANDLE;
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    return attributes(out, attribute, [&](int* answer, CUfunction_attribute each) {
        return session.cuda().cuFuncGetAttribute(answer, each, function);
    });
}
CUresult serve_cuKernelGetAttribute(Session& session, Reader& in, Writer& out) {
    const auto attribute = in.get<CUfunction_attribute>();
    CUkernel kernel;
    if (!session.handle(in.get<uint64_t>(), Kind::kernel, kernel)) return CUDA_ERROR_INVALID_HANDLE;
    in.get<CUdevice>();  // the program's number
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    return attributes(out, attribute, [&](int* answer, CUfunction_attribute each) {
        return session.cuda().cuKernelGetAttribute(answer, each, kernel, session.device());
    });
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
