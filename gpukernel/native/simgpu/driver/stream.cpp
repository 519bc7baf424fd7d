// Streams, events, host functions (driver API chapters "Stream Management" and "Event Management").
#include <utility>

#include "state.h"

using namespace gpukernel::simgpu;

namespace {
std::atomic<unsigned long long> next_stream_id{16};

CUresult host_function(CUstream hStream, std::function<void()> function) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    note(stream, device->queue.submit([device, function = std::move(function)] {
        device->flush_printed();
        function();
        return CUDA_SUCCESS;
    }));
    return CUDA_SUCCESS;
}

Event* event_of(CUevent handle) { return driver() ? driver()->events.get<Event>(handle) : nullptr; }
}  // namespace

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) {
    GPUKERNEL_HERE(device);
    if (!phStream || flags & ~CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    auto* stream = new Stream{device, flags, std::min(0, std::max(-5, priority)), {0}, next_stream_id++};
    *phStream = reinterpret_cast<CUstream>(driver()->streams.add(stream));
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamCreate(CUstream* phStream, unsigned int Flags) {
    return cuStreamCreateWithPriority(phStream, Flags, 0);
}

CUresult CUDAAPI cuStreamDestroy(CUstream hStream) {
    GPUKERNEL_HERE(device);
    auto* stream = driver()->streams.get<Stream>(hStream);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    driver()->streams.remove(stream);
    delete stream;  // its work is in the device's queue and holds nothing of it
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetPriority(CUstream hStream, int* priority) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    *priority = stream ? stream->priority : 0;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetFlags(CUstream hStream, unsigned int* flags) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    *flags = stream ? stream->flags : 0;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetId(CUstream hStream, unsigned long long* streamId) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    *streamId = stream ? stream->id : 1 + device->index;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetCtx(CUstream hStream, CUcontext* pctx) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    *pctx = reinterpret_cast<CUcontext>(current_context());
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetDevice(CUstream hStream, CUdevice* device_out) {
    GPUKERNEL_HERE(device);
    *device_out = device->index;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream hStream) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    Device* const its = stream ? stream->device : device;
    its->queue.wait(stream ? stream->last.load() : its->queue.last());
    its->flush_printed();
    return its->queue.take_error();
}

CUresult CUDAAPI cuStreamQuery(CUstream hStream) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    Device* const its = stream ? stream->device : device;
    if (!its->queue.done(stream ? stream->last.load() : its->queue.last())) return CUDA_ERROR_NOT_READY;
    its->flush_printed();
    return its->queue.take_error();
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream) || !event_of(hEvent)) return CUDA_ERROR_INVALID_HANDLE;
    return CUDA_SUCCESS;  // whatever the event stands for was submitted before what follows, and so runs
                          // before it
}

// Nothing is captured here, so the mode is only kept.
CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    static thread_local CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, current);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus* captureStatus) {
    GPUKERNEL_HERE(device);
    if (!captureStatus) return CUDA_ERROR_INVALID_VALUE;
    *captureStatus = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void* userData) {
    if (!fn) return CUDA_ERROR_INVALID_VALUE;
    return host_function(hStream, [=] { fn(userData); });
}
CUresult CUDAAPI cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void* userData,
                                     unsigned int flags) {
    if (!callback || flags) return CUDA_ERROR_INVALID_VALUE;
    return host_function(hStream, [=] { callback(hStream, CUDA_SUCCESS, userData); });
}

CUresult CUDAAPI cuEventCreate(CUevent* phEvent, unsigned int Flags) {
    GPUKERNEL_HERE(device);
    if (!phEvent) return CUDA_ERROR_INVALID_VALUE;
    if (Flags & CU_EVENT_INTERPROCESS) return CUDA_ERROR_NOT_SUPPORTED;
    auto* event = new Event;
    event->device = device, event->flags = Flags;
    *phEvent = reinterpret_cast<CUevent>(driver()->events.add(event));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecord(CUevent hEvent, CUstream hStream) {
    GPUKERNEL_HERE(device);
    Event* event = event_of(hEvent);
    Stream* stream;
    if (!event || !stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    auto when = std::make_shared<Clock::time_point>();
    std::lock_guard lock(event->mutex);
    event->when = when;
    event->recorded = true;
    event->ticket = device->queue.submit([when] {
        *when = Clock::now();
        return CUDA_SUCCESS;
    });
    note(stream, event->ticket);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
    return cuEventRecord(hEvent, hStream);
}

CUresult CUDAAPI cuEventQuery(CUevent hEvent) {
    GPUKERNEL_HERE(device);
    Event* event = event_of(hEvent);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    std::lock_guard lock(event->mutex);
    return event->device->queue.done(event->ticket) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuEventSynchronize(CUevent hEvent) {
    GPUKERNEL_HERE(device);
    Event* event = event_of(hEvent);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    uint64_t ticket;
    {
        std::lock_guard lock(event->mutex);
        ticket = event->ticket;
    }
    event->device->queue.wait(ticket);
    event->device->flush_printed();
    return event->device->queue.take_error();
}

CUresult CUDAAPI cuEventDestroy(CUevent hEvent) {
    GPUKERNEL_HERE(device);
    Event* event = event_of(hEvent);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    driver()->events.remove(event);
    delete event;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventElapsedTime(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
    GPUKERNEL_HERE(device);
    Event *start = event_of(hStart), *end = event_of(hEnd);
    if (!start || !end || !pMilliseconds) return CUDA_ERROR_INVALID_HANDLE;
    if (start->device != end->device) return CUDA_ERROR_INVALID_HANDLE;
    std::unique_lock first(start->mutex, std::defer_lock), second(end->mutex, std::defer_lock);
    if (start == end)
        first.lock();
    else
        std::lock(first, second);
    if (!start->recorded || !end->recorded || (start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!start->device->queue.done(start->ticket) || !end->device->queue.done(end->ticket))
        return CUDA_ERROR_NOT_READY;
    *pMilliseconds = std::chrono::duration<float, std::milli>(*end->when - *start->when).count();
    return CUDA_SUCCESS;
}
