// Streams, events, host functions (driver API chapters "Stream Management" and "Event Management").
#include <utility>

#include "simgpu/driver/state.h"

using namespace gpukernel::simgpu;

namespace {
CUresult host_function(CUstream hStream, std::function<void(CUresult status)> function) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    schedule().submit(*stream, Engine::host_functions, [device, function = std::move(function)] {
        device->flush_printed();
        this_thread.in_host_function = true;
        function(device->sticky_error());
        this_thread.in_host_function = false;
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

Event* event_of(CUevent handle) { return driver() ? driver()->events.get<Event>(handle) : nullptr; }

StreamPosition position_of(Event& event) {  // where it was last recorded; one that never was is passed
    std::lock_guard lock(event.mutex);
    return event.position;
}
}  // namespace

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) {
    GPUKERNEL_HERE(device);
    if (!phStream || flags & ~CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    Context* const context = current_context();
    auto stream = std::make_shared<Stream>(device, context, context->legacy, flags,
                                           std::min(0, std::max(-5, priority)));
    stream->open = stream;
    *phStream = reinterpret_cast<CUstream>(driver()->streams.add(stream.get()));
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamCreate(CUstream* phStream, unsigned int Flags) {
    return cuStreamCreateWithPriority(phStream, Flags, 0);
}

CUresult CUDAAPI cuStreamDestroy(CUstream hStream) {
    GPUKERNEL_HERE(device);
    auto* stream = driver()->streams.get<Stream>(hStream);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    // The stream lives until its work is done.
    if (driver()->streams.remove(stream)) std::shared_ptr<Stream>(std::move(stream->open)).reset();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetPriority(CUstream hStream, int* priority) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    *priority = stream->priority;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetFlags(CUstream hStream, unsigned int* flags) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    *flags = stream->flags;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetId(CUstream hStream, unsigned long long* streamId) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    *streamId = stream->id;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetCtx(CUstream hStream, CUcontext* pctx) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    *pctx = stream->context;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetDevice(CUstream hStream, CUdevice* device_out) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    *device_out = stream->device->index;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream hStream) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    schedule().wait(*stream);
    return device->told();  // the stream may be gone
}

CUresult CUDAAPI cuStreamQuery(CUstream hStream) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    return schedule().idle(*stream) ? stream->device->told() : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    Event* const event = event_of(hEvent);
    if (!stream_of(hStream, stream) || !event) return CUDA_ERROR_INVALID_HANDLE;
    schedule().wait_for(*stream, position_of(*event));
    return CUDA_SUCCESS;
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
    return host_function(hStream, [=](CUresult status) {
        if (status == CUDA_SUCCESS) fn(userData);
    });
}
CUresult CUDAAPI cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void* userData,
                                     unsigned int flags) {
    if (!callback || flags) return CUDA_ERROR_INVALID_VALUE;
    return host_function(hStream, [=](CUresult status) { callback(hStream, status, userData); });
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
    if (!event || !stream_of(hStream, stream) || stream->device != event->device)
        return CUDA_ERROR_INVALID_HANDLE;
    auto when = std::make_shared<Clock::time_point>();
    const StreamPosition position = schedule().mark(*stream, when);
    std::lock_guard lock(event->mutex);
    event->when = when, event->position = position;
    event->recorded = true;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
    return cuEventRecord(hEvent, hStream);
}

CUresult CUDAAPI cuEventQuery(CUevent hEvent) {
    GPUKERNEL_HERE(device);
    Event* event = event_of(hEvent);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    return position_of(*event).passed() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuEventSynchronize(CUevent hEvent) {
    GPUKERNEL_HERE(device);
    Event* event = event_of(hEvent);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    Device* const its = event->device;
    schedule().wait(position_of(*event));
    return its->told();
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
    if (!start->position.passed() || !end->position.passed()) return CUDA_ERROR_NOT_READY;
    *pMilliseconds = std::chrono::duration<float, std::milli>(*end->when - *start->when).count();
    return CUDA_SUCCESS;
}
