// The streamed calls, which read and write the connection themselves: copies between a program and the
// device, and the switch to shared memory.
//
// Where the host can address the device's memory, a copy's data is received into it and sent from it.
// Elsewhere it goes through a staging buffer, or straight from the ring to the driver.
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "worker/session/session.h"

namespace gpukernel::worker {

using wire::AnswerHead;
using wire::FrameHeader;

namespace {
constexpr size_t DIRECT = 64 << 10;  // smaller copies are not worth the queries for a direct way
}

// Returns where the host can address the device's `address`, as on the simulated GPU
// (CU_POINTER_ATTRIBUTE_HOST_POINTER); nullptr where it cannot.
char* Session::host_pointer(CUdeviceptr address) {
    void* pointer = nullptr;
    return cuda().cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER, address) == CUDA_SUCCESS
               ? static_cast<char*>(pointer)
               : nullptr;
}

// Returns whether a copy in `stream` would begin now, without waiting for earlier work.
bool Session::can_copy_now(CUstream stream) {
    unsigned flags = 0;
    if (!is_done(stream)) return false;
    if (!stream || stream == CU_STREAM_LEGACY) return true;
    // A blocking stream is ordered after the default stream, too.
    return (cuda().cuStreamGetFlags(stream, &flags) == CUDA_SUCCESS && flags & CU_STREAM_NON_BLOCKING) ||
           is_done(nullptr);
}

// Stream 0 means the synchronous copy, which is done before any later request, in whatever stream.
bool Session::serve_copy_to_device(RequestContext& context) {
    char bytes[wire::CopyToDeviceRequest::HEAD_BYTES];
    const FrameHeader& header = context.request;
    if (header.length < sizeof bytes || header.length > sizeof bytes + wire::COPY_PIECE) return false;
    if (!channel_.read(bytes, sizeof bytes)) return false;
    Reader in(bytes, sizeof bytes);
    const auto head = wire::CopyToDeviceRequest::read(in);
    size_t left = header.length - sizeof bytes;
    context.question = false;
    called(false);
    CUstream stream = nullptr;
    CUresult result = !handle(head.stream, Kind::stream, stream)      ? CUDA_ERROR_INVALID_HANDLE
                      : left && !lease_.valid(head.destination, left) ? CUDA_ERROR_INVALID_VALUE
                                                                      : CUDA_SUCCESS;
    const bool large = result == CUDA_SUCCESS && left >= DIRECT, rests = large && can_copy_now(stream);
    char* const direct = rests ? host_pointer(head.destination) : nullptr;
    // From the ring the driver copies the bytes itself, unless it would have to wait.
    if (large && !direct && !(rests && channel_.shares_memory())) {
        if (StagingBuffers::StagingBuffer* buffer = lease_.staging_buffers.take()) {
            if (!channel_.read(buffer->memory, left)) {
                lease_.staging_buffers.give(buffer);
                return false;
            }
            result = cuda().cuMemcpyHtoDAsync_v2(head.destination, buffer->memory, left, stream);
            lease_.staging_buffers.give(buffer, stream);
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
        context.body.resize(left);
        if (!channel_.read(context.body.data(), left)) return false;
        if (result == CUDA_SUCCESS && left) result = copy(head.destination, context.body.data(), left);
    }
    keep(result);
    return true;
}

bool Session::serve_copy_to_host(RequestContext& context) {
    char bytes[wire::CopyToHostRequest::HEAD_BYTES];
    if (context.request.length != sizeof bytes || !channel_.read(bytes, sizeof bytes)) return false;
    Reader in(bytes, sizeof bytes);
    const auto head = wire::CopyToHostRequest::read(in);
    context.question = false;
    called(false);
    context.out.assign(ANSWER_BYTES, 0);
    CUstream stream;
    if (!handle(head.stream, Kind::stream, stream)) return answer(context, CUDA_ERROR_INVALID_HANDLE);
    if (!head.count) return answer(context, CUDA_SUCCESS);
    if (head.count > wire::COPY_PIECE || !lease_.valid(head.source, head.count))
        return answer(context, CUDA_ERROR_INVALID_VALUE);
    auto copy = [&](void* to, size_t size) {
        auto read = [&] {
            if (!stream) return cuda().cuMemcpyDtoH_v2(to, head.source, size);
            const CUresult read = cuda().cuMemcpyDtoHAsync_v2(to, head.source, size, stream);
            return read == CUDA_SUCCESS ? cuda().cuStreamSynchronize(stream) : read;
        };
        // With several threads, to hand over the reading costs two system calls.
        const CUresult result = serves_while_waiting_ && is_done(stream) ? read() : wait(read, stream);
        lease_.finished();
        return result;
    };
    if (head.count >= DIRECT) {
        if (char* direct = host_pointer(head.source)) {
            // Once one byte is copied, all earlier work is done.  While no other thread reads requests,
            // nothing is submitted that might write there.
            char byte;
            const CUresult result = copy(&byte, 1);
            if (context.reads || result != CUDA_SUCCESS) return answer(context, result, direct, head.count);
        }
        if (StagingBuffers::StagingBuffer* buffer = lease_.staging_buffers.take()) {
            const CUresult result = copy(buffer->memory, head.count);
            const bool sent = answer(context, result, buffer->memory, head.count);
            lease_.staging_buffers.give(buffer);
            return sent;
        }
    }
    context.out.resize(context.out.size() + head.count);
    return answer(context, copy(context.out.data() + context.out.size() - head.count, head.count));
}

bool Session::serve_share_memory(RequestContext& context) {
    int domain = 0;
    socklen_t size = sizeof domain;
    const FrameHeader& header = context.request;
    context.out.assign(ANSWER_BYTES, 0);
    if (header.length || channel_.shares_memory()) return false;
    ::getsockopt(channel_.socket().fd(), SOL_SOCKET, SO_DOMAIN, &domain, &size);
    const FrameHeader frame{sizeof(AnswerHead), header.call, header.number};
    std::memcpy(context.out.data(), &frame, sizeof frame);
    std::scoped_lock lock(writing_, mutex_);
    if (domain == AF_UNIX && ring_charge_.grow(2 * wire::RING_BYTES) &&
        channel_.offer_ring(context.out.data(), context.out.size()))
        return true;
    const AnswerHead refused{CUDA_ERROR_NOT_SUPPORTED, 0};
    std::memcpy(context.out.data() + sizeof frame, &refused, sizeof refused);
    return channel_.write(context.out.data(), context.out.size());
}

}  // namespace gpukernel::worker
