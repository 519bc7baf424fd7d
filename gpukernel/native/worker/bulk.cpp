// Copies between a program and its slice, and the memory that both may share.  Bulk data is not gathered
// first: it goes from the ring, or where the device's memory can be reached from the host from the socket, to
// where it belongs.
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

bool Session::take_bulk(const FrameHeader& header) {
    struct {
        CUdeviceptr destination;
        uint64_t stream;
    } head;
    if (header.length < sizeof head || header.length > sizeof head + wire::COPY_PIECE) return false;
    if (!channel_.read(&head, sizeof head)) return false;
    size_t left = header.length - sizeof head;
    question_ = false;
    called(false);
    CUstream stream = nullptr;
    CUresult result = !handle(head.stream, Kind::stream, stream)      ? CUDA_ERROR_INVALID_HANDLE
                      : left && !lease_.valid(head.destination, left) ? CUDA_ERROR_INVALID_VALUE
                                                                      : CUDA_SUCCESS;
    // The bytes are pageable memory of this process: the driver takes them before it returns.
    auto copy = [&](CUdeviceptr to, const char* from, size_t size) {
        return stream ? cuda().cuMemcpyHtoDAsync_v2(to, from, size, stream)
                      : cuda().cuMemcpyHtoD_v2(to, from, size);
    };
    if (channel_.shares_memory()) {
        for (CUdeviceptr to = head.destination; left;) {
            const char* at;
            const size_t piece = std::min(channel_.peek(at), left);
            if (!piece) return false;
            if (result == CUDA_SUCCESS) result = copy(to, at, piece);
            channel_.consumed(piece);
            to += piece, left -= piece;
        }
    } else if (char* direct =
                   result == CUDA_SUCCESS && left >= DIRECT ? host_pointer(head.destination) : nullptr) {
        result = stream ? cuda().cuStreamSynchronize(stream) : cuda().cuCtxSynchronize();
        if (result == CUDA_SUCCESS) {
            if (!channel_.read(direct, left)) return false;
        } else {
            body_.resize(left);
            if (!channel_.read(body_.data(), left)) return false;
        }
    } else {
        body_.resize(left);
        if (!channel_.read(body_.data(), left)) return false;
        if (result == CUDA_SUCCESS && left) result = copy(head.destination, body_.data(), left);
    }
    keep(result);
    return true;
}

bool Session::give_bulk(const FrameHeader& header) {
    struct {
        CUdeviceptr source;
        uint64_t stream, bytes;
    } head;
    if (header.length != sizeof head || !channel_.read(&head, sizeof head)) return false;
    question_ = false;
    called(false);
    out_.assign(sizeof(FrameHeader) + 8, 0);
    CUstream stream;
    if (!handle(head.stream, Kind::stream, stream)) return answer(header.call, CUDA_ERROR_INVALID_HANDLE);
    if (!head.bytes) return answer(header.call, CUDA_SUCCESS);
    if (head.bytes > wire::COPY_PIECE || !lease_.valid(head.source, head.bytes))
        return answer(header.call, CUDA_ERROR_INVALID_VALUE);
    auto wait = [&] {
        CUresult result = stream ? cuda().cuStreamSynchronize(stream) : cuda().cuCtxSynchronize();
        lease_.finished();
        return result;
    };
    if (char* direct = head.bytes >= DIRECT ? host_pointer(head.source) : nullptr)
        return answer(header.call, wait(), direct, head.bytes);
    out_.resize(out_.size() + head.bytes);
    char* to = out_.data() + out_.size() - head.bytes;
    CUresult result;
    if (!stream) {
        result = cuda().cuMemcpyDtoH_v2(to, head.source, head.bytes);
        lease_.finished();
    } else {
        result = cuda().cuMemcpyDtoHAsync_v2(to, head.source, head.bytes, stream);
        if (result == CUDA_SUCCESS) result = wait();
    }
    return answer(header.call, result);
}

bool Session::share_memory(const FrameHeader& header) {
    int domain = 0;
    socklen_t size = sizeof domain;
    out_.assign(sizeof(FrameHeader) + 8, 0);
    if (header.length || channel_.shares_memory()) return false;
    ::getsockopt(channel_.socket().fd(), SOL_SOCKET, SO_DOMAIN, &domain, &size);
    const FrameHeader frame{8, header.call, 0};
    std::memcpy(out_.data(), &frame, sizeof frame);
    std::lock_guard lock(writing_);
    if (domain == AF_UNIX && channel_.offer_ring(out_.data(), out_.size())) return true;
    const auto refused = static_cast<uint32_t>(CUDA_ERROR_NOT_SUPPORTED);
    std::memcpy(out_.data() + sizeof frame, &refused, sizeof refused);
    return channel_.write(out_.data(), out_.size());
}

}  // namespace gpukernel::worker
