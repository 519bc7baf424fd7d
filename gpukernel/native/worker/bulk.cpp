// Copies between a program and its slice, and the memory that both may share.  Where the host can reach the
// device's memory, bulk data is received into it and sent from it; else it goes through pinned memory, or
// from the ring to the driver.
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "session.h"

namespace gpukernel::worker {

using wire::FrameHeader;

namespace {
constexpr size_t DIRECT = 64 << 10;  // a smaller piece is not worth the questions
}

// Where the host can reach `address` itself, as on the simulated GPU (CU_POINTER_ATTRIBUTE_HOST_POINTER).
char* Session::host_pointer(CUdeviceptr address) {
    void* pointer = nullptr;
    return cuda().cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER, address) == CUDA_SUCCESS
               ? static_cast<char*>(pointer)
               : nullptr;
}

// Whether a copy into `stream` could begin now, so that making it is all that it takes.
bool Session::at_rest(CUstream stream) {
    unsigned flags = 0;
    if (!is_done(stream)) return false;
    if (!stream || stream == CU_STREAM_LEGACY) return true;
    // A blocking stream waits for the default stream, too.
    return (cuda().cuStreamGetFlags(stream, &flags) == CUDA_SUCCESS && flags & CU_STREAM_NON_BLOCKING) ||
           is_done(nullptr);
}

// The synchronous copy comes without a stream: what follows it, in whichever stream, finds it done.
bool Session::take_bulk(Desk& desk) {
    struct {
        CUdeviceptr destination;
        uint64_t stream;
    } head;
    const FrameHeader& header = desk.request;
    if (header.length < sizeof head || header.length > sizeof head + wire::COPY_PIECE) return false;
    if (!channel_.read(&head, sizeof head)) return false;
    size_t left = header.length - sizeof head;
    desk.question = false;
    called(false);
    CUstream stream = nullptr;
    CUresult result = !handle(head.stream, Kind::stream, stream)      ? CUDA_ERROR_INVALID_HANDLE
                      : left && !lease_.valid(head.destination, left) ? CUDA_ERROR_INVALID_VALUE
                                                                      : CUDA_SUCCESS;
    const bool large = result == CUDA_SUCCESS && left >= DIRECT, rests = large && at_rest(stream);
    char* const direct = rests ? host_pointer(head.destination) : nullptr;
    // From shared memory the driver takes the bytes itself, unless it had to wait.
    if (large && !direct && !(rests && channel_.shares_memory())) {
        if (Stages::Stage* stage = lease_.stages.take()) {
            if (!channel_.read(stage->memory, left)) {
                lease_.stages.give(stage);
                return false;
            }
            result = cuda().cuMemcpyHtoDAsync_v2(head.destination, stage->memory, left, stream);
            lease_.stages.give(stage, stream);
            if (!stream && result == CUDA_SUCCESS)
                result = wait([&] { return cuda().cuStreamSynchronize(nullptr); });
            keep(result);
            return true;
        }
    }
    // The bytes are pageable memory of this process: the driver takes them before it returns.
    auto copy = [&](CUdeviceptr to, const char* from, size_t size) {
        return stream ? cuda().cuMemcpyHtoDAsync_v2(to, from, size, stream)
                      : cuda().cuMemcpyHtoD_v2(to, from, size);
    };
    if (direct) {
        if (!channel_.read(direct, left)) return false;
    } else if (channel_.shares_memory()) {
        for (CUdeviceptr to = head.destination; left;) {
            const char* at;
            const size_t piece = std::min(channel_.peek(at), left);
            if (!piece) return false;
            if (result == CUDA_SUCCESS) result = copy(to, at, piece);
            channel_.consumed(piece);
            to += piece, left -= piece;
        }
    } else {
        desk.body.resize(left);
        if (!channel_.read(desk.body.data(), left)) return false;
        if (result == CUDA_SUCCESS && left) result = copy(head.destination, desk.body.data(), left);
    }
    keep(result);
    return true;
}

bool Session::give_bulk(Desk& desk) {
    struct {
        CUdeviceptr source;
        uint64_t stream, bytes;
    } head;
    if (desk.request.length != sizeof head || !channel_.read(&head, sizeof head)) return false;
    desk.question = false;
    called(false);
    desk.out.assign(sizeof(FrameHeader) + 8, 0);
    CUstream stream;
    if (!handle(head.stream, Kind::stream, stream)) return answer(desk, CUDA_ERROR_INVALID_HANDLE);
    if (!head.bytes) return answer(desk, CUDA_SUCCESS);
    if (head.bytes > wire::COPY_PIECE || !lease_.valid(head.source, head.bytes))
        return answer(desk, CUDA_ERROR_INVALID_VALUE);
    auto copy = [&](void* to, size_t size) {
        auto read = [&] {
            if (!stream) return cuda().cuMemcpyDtoH_v2(to, head.source, size);
            const CUresult read = cuda().cuMemcpyDtoHAsync_v2(to, head.source, size, stream);
            return read == CUDA_SUCCESS ? cuda().cuStreamSynchronize(stream) : read;
        };
        // To stand aside takes two system calls where there are other threads.
        const CUresult result = attentive_ && is_done(stream) ? read() : wait(read, stream);
        lease_.finished();
        return result;
    };
    if (head.bytes >= DIRECT) {
        if (char* direct = host_pointer(head.source)) {
            // Where a byte can be copied, all that comes before is done.  As long as nobody else reads on,
            // nothing is submitted that might write there.
            char byte;
            const CUresult result = copy(&byte, 1);
            if (desk.reads || result != CUDA_SUCCESS) return answer(desk, result, direct, head.bytes);
        }
        if (Stages::Stage* stage = lease_.stages.take()) {
            const CUresult result = copy(stage->memory, head.bytes);
            const bool sent = answer(desk, result, stage->memory, head.bytes);
            lease_.stages.give(stage);
            return sent;
        }
    }
    desk.out.resize(desk.out.size() + head.bytes);
    return answer(desk, copy(desk.out.data() + desk.out.size() - head.bytes, head.bytes));
}

bool Session::share_memory(Desk& desk) {
    int domain = 0;
    socklen_t size = sizeof domain;
    const FrameHeader& header = desk.request;
    desk.out.assign(sizeof(FrameHeader) + 8, 0);
    if (header.length || channel_.shares_memory()) return false;
    ::getsockopt(channel_.socket().fd(), SOL_SOCKET, SO_DOMAIN, &domain, &size);
    const FrameHeader frame{8, header.call, header.number};
    std::memcpy(desk.out.data(), &frame, sizeof frame);
    std::scoped_lock lock(writing_, mutex_);
    if (domain == AF_UNIX && channel_.offer_ring(desk.out.data(), desk.out.size())) return true;
    const auto refused = static_cast<uint32_t>(CUDA_ERROR_NOT_SUPPORTED);
    std::memcpy(desk.out.data() + sizeof frame, &refused, sizeof refused);
    return channel_.write(desk.out.data(), desk.out.size());
}

}  // namespace gpukernel::worker
