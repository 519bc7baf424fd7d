#include "libraries/nccl/parts.h"

#include <cstring>
#include <utility>

#include "libraries/nccl/reduction.h"

namespace gpukernel::libraries::nccl {

namespace {
int give(Part& part) {
    const Communicator& own = part.communicator;
    const Question& asked = part.question;
    std::vector<char> given;
    if (asked.kind == Kind::SPLIT) {
        given.resize(2 * sizeof(int));
        std::memcpy(given.data(), &part.color, sizeof(int));
        std::memcpy(given.data() + sizeof(int), &part.key, sizeof(int));
    } else if (part.way != Part::RECEIVE) {
        const size_t times = part.way == Part::SEND ? 1 : asked.given_by(own.rank, own.clique->size());
        given.resize(times * asked.count * BYTES[asked.type]);
        const Current current(own);
        CUresult result = current.result;
        CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
        if (result == CUDA_SUCCESS) result = DRIVER(cuStreamIsCapturing, part.stream, &capturing);
        if (result == CUDA_SUCCESS && capturing != CU_STREAM_CAPTURE_STATUS_NONE)
            return refuse(INVALID_USAGE,
                          "NCCL: a collective of several devices cannot be captured into a graph on a slice");
        if (result == CUDA_SUCCESS && !given.empty())
            result = DRIVER(cuMemcpyDtoHAsync_v2, given.data(), reinterpret_cast<CUdeviceptr>(part.from),
                            given.size(), part.stream);
        if (result == CUDA_SUCCESS && !given.empty()) result = DRIVER(cuStreamSynchronize, part.stream);
        if (int status = outcome(result, "what a rank gives")) {
            own.clique->fail("rank " + std::to_string(own.rank) + " could not read what it gives");
            return status;
        }
    }
    if (part.way == Part::TOGETHER) part.number = own.clique->give(own.rank, asked, std::move(given));
    if (part.way == Part::SEND) own.clique->send(own.rank, asked.root, std::move(given));
    return SUCCESS;
}

int get(const Part& part) {
    const Communicator& own = part.communicator;
    const Question& asked = part.question;
    std::vector<char> got;
    std::string sentence;
    if (asked.kind == Kind::SPLIT) {
        Communicator fresh = own;
        sentence = own.clique->get(own.rank, part.number, fresh.clique, fresh.rank);
        if (sentence.empty() && fresh.clique) {
            if (fresh.clique->size() == 1) fresh.clique = nullptr;
            const std::lock_guard lock(communicators().mutex);
            communicators().living.insert(*part.divided = new Communicator(fresh));
        }
    } else if (part.way == Part::RECEIVE) {
        sentence = own.clique->receive(asked.root, own.rank, asked.count * BYTES[asked.type], got);
    } else if (part.way == Part::TOGETHER) {
        sentence = own.clique->get(own.rank, part.number, got);
    }
    if (!sentence.empty()) return refuse(INVALID_USAGE, "NCCL: " + sentence);
    if (got.empty()) return SUCCESS;
    const Current current(own);
    if (current.result != CUDA_SUCCESS) return outcome(current.result, "a rank's context");
    // Memory that is not pinned has been read when the call returns.
    return outcome(DRIVER(cuMemcpyHtoDAsync_v2, reinterpret_cast<CUdeviceptr>(part.to), got.data(),
                          got.size(), part.stream),
                   "what a rank gets");
}
}  // namespace

int finish(std::vector<Part> parts) {
    int first = SUCCESS;
    for (Part& part : parts)
        if (int status = give(part)) return status;
    for (const Part& part : parts)
        if (int status = get(part); status && !first) first = status;
    return first;
}

}  // namespace gpukernel::libraries::nccl
