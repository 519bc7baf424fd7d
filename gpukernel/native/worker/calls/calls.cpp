// The handlers of driver calls: the generated ones, and those flagged `handwritten` in codegen/calls.txt,
// which keep accounts: memory, and what is destroyed.
#include <algorithm>
#include <cstring>

#include "worker/lease/measured.h"

namespace gpukernel::worker {

#include "worker_driver_calls.inc"

static CUresult allocate(Session& session, Writer& out, uint64_t bytes, CUstream stream, bool asynchronous) {
    Lease& lease = session.lease();
    if (session.kept_error() != CUDA_SUCCESS) return session.kept_error();
    if (!bytes) {  // in a stream's order nothing may be asked for; the reference forbids it elsewhere
        if (!asynchronous) return CUDA_ERROR_INVALID_VALUE;
        return out.put<CUdeviceptr>(0), CUDA_SUCCESS;
    }
    if (bytes > lease.memory_limit()) return CUDA_ERROR_OUT_OF_MEMORY;
    if (asynchronous && lease.freed.any()) {
        std::lock_guard allocating(lease.allocation_mutex);
        if (const auto again = lease.freed.reuse(bytes, stream, &session))
            return out.put(*again), CUDA_SUCCESS;
    }
    auto host = session.host_charge(HostMemory::BLOCK);
    if (!host) return CUDA_ERROR_OUT_OF_MEMORY;
    const Session::Hold hold(session, stream);
    if (CUresult error = session.reserve(charge(bytes)); error != CUDA_SUCCESS) return error;
    std::lock_guard allocating(lease.allocation_mutex);
    CUdeviceptr address = 0;
    CUresult result = asynchronous ? session.cuda().cuMemAllocAsync(&address, bytes, stream)
                                   : session.cuda().cuMemAlloc_v2(&address, bytes);
    if (result != CUDA_SUCCESS) {
        lease.cancel(charge(bytes));
        return result;
    }
    lease.commit(address, charge(bytes), bytes, &session, asynchronous);
    out.put(address);
    return CUDA_SUCCESS;
}

CUresult serve_cuMemAlloc_v2(Session& session, Reader& in, Writer& out) {
    return allocate(session, out, in.get<uint64_t>(), nullptr, false);
}

CUresult serve_cuMemAllocAsync(Session& session, Reader& in, Writer& out) {
    const auto bytes = in.get<uint64_t>();
    CUstream stream;
    if (!session.handle(in.get<uint64_t>(), Kind::stream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    return allocate(session, out, bytes, stream, true);
}

CUresult serve_cuMemAllocPitch_v2(Session& session, Reader& in, Writer& out) {
    const auto width = in.get<uint64_t>(), height = in.get<uint64_t>();
    if (!width || !height) return CUDA_ERROR_INVALID_VALUE;
    if (width > session.lease().memory_limit() || height > session.lease().memory_limit())
        return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t pitch = charge(width);  // 512 divides every pitch that the driver gives
    uint64_t bytes;
    if (__builtin_mul_overflow(pitch, height, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = allocate(session, out, bytes, nullptr, false);
    if (result == CUDA_SUCCESS) out.put<uint64_t>(pitch);
    return result;
}

CUresult serve_cuMemFree_v2(Session& session, Reader& in, Writer&) {
    const auto address = in.get<CUdeviceptr>();
    if (!address) return CUDA_SUCCESS;
    Lease& lease = session.lease();
    if (!lease.begin_release(address, &session)) return CUDA_ERROR_INVALID_VALUE;
    // The driver would wait, too, but without serving other threads meanwhile.
    const CUresult result = session.wait([&] { return session.cuda().cuCtxSynchronize(); });
    std::lock_guard allocating(lease.allocation_mutex);
    if (session.free(address))
        lease.end_release(address);
    else
        lease.cancel_release(address);
    return result;
}

CUresult serve_keep_block(Session& session, Reader& in, Writer&) {
    const auto [address] = wire::KeepBlockRequest::read(in);
    const uint64_t number = session.lease().keep(address, &session);
    if (!number) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = session.wait([&] { return session.cuda().cuCtxSynchronize(); });
    session.lease().settle_kept(address, number);
    return result;
}
CUresult serve_take_block(Session& session, Reader& in, Writer&) {
    const auto [address] = wire::TakeBlockRequest::read(in);
    bool settled;
    if (!session.lease().take_again(address, &session, settled)) return CUDA_ERROR_INVALID_VALUE;
    // Another thread may have had the requests after `keep_block` served while it waits.  Those after this
    // one use the block: they are not served before the device is done with it.
    return settled ? CUDA_SUCCESS : session.cuda().cuCtxSynchronize();
}

// Not by Session::wait, which would have later requests served meanwhile.
CUresult serve_settle_copies(Session& session, Reader& in, Writer&) {
    CUstream stream;
    CUevent event;
    const auto [name, event_name] = wire::SettleCopiesRequest::read(in);
    if (!session.handle(name, Kind::stream, stream) ||
        (event_name && !session.handle(event_name, Kind::event, event)))
        return CUDA_ERROR_INVALID_HANDLE;
    return event_name ? session.cuda().cuEventSynchronize(event) : session.cuda().cuStreamSynchronize(stream);
}

CUresult serve_cuMemFreeAsync(Session& session, Reader& in, Writer&) {
    const auto address = in.get<CUdeviceptr>();
    CUstream stream;
    if (!session.handle(in.get<uint64_t>(), Kind::stream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (!address) return CUDA_SUCCESS;
    std::lock_guard allocating(session.lease().allocation_mutex);
    return session.lease().freed.free(address, stream, &session);
}

CUresult serve_cuMemGetInfo_v2(Session& session, Reader&, Writer& out) {
    if (FreedBlocks& freed = session.lease().freed; freed.any()) {
        std::lock_guard allocating(session.lease().allocation_mutex);
        freed.flush();
        freed.settle();
    }
    const uint64_t limit = session.lease().memory_limit(), used = session.lease().memory_used();
    out.put<uint64_t>(limit - std::min(used, limit));
    out.put<uint64_t>(limit);
    return CUDA_SUCCESS;
}

CUresult serve_cuCtxSetLimit(Session& session, Reader& in, Writer&) {
    const auto limit = in.get<CUlimit>();
    const auto value = in.get<uint64_t>();
    Lease& lease = session.lease();
    std::lock_guard allocating(lease.allocation_mutex);
    size_t before = 0;
    CUresult result = session.cuda().cuCtxGetLimit(&before, limit);
    if (result != CUDA_SUCCESS) return result;
    switch (limit) {
        case CU_LIMIT_STACK_SIZE:
        case CU_LIMIT_PRINTF_FIFO_SIZE:
        case CU_LIMIT_MALLOC_HEAP_SIZE:
        case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:  // no memory, as the next
        case CU_LIMIT_PERSISTING_L2_CACHE_SIZE:
            break;
        case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
        case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
            // More takes device memory, and nothing says how much.
            if (const auto usual = lease.usual_limits.find(limit);
                value > (usual == lease.usual_limits.end() ? before : usual->second))
                return CUDA_ERROR_OUT_OF_MEMORY;
            break;
        default:
            return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    // The driver may refuse: nothing is refunded before it has answered.
    if (!lease.set_aside(limit, session.set_aside_by(limit, std::max<uint64_t>(value, before))))
        return CUDA_ERROR_OUT_OF_MEMORY;
    lease.usual_limits.try_emplace(limit, before);
    result = session.cuda().cuCtxSetLimit(limit, value);
    // It may also set aside more than it was asked for.  What it does not tell stays charged.
    const auto charged_as_set = [&] {
        size_t now = 0;
        return session.cuda().cuCtxGetLimit(&now, limit) != CUDA_SUCCESS ||
               lease.set_aside(limit, session.set_aside_by(limit, now));
    };
    if (!charged_as_set()) {
        session.cuda().cuCtxSetLimit(limit, before);
        charged_as_set();
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

// --- copies and fills on the device: within the lease's own memory; those of 0 bytes, anywhere ---

static CUresult copy(Session& session, Reader& in, bool with_stream) {
    const auto destination = in.get<CUdeviceptr>(), source = in.get<CUdeviceptr>();
    const auto bytes = in.get<uint64_t>();
    CUstream stream = nullptr;
    if (with_stream && !session.handle(in.get<uint64_t>(), Kind::stream, stream))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!in.failed() && !bytes) return CUDA_SUCCESS;
    if (in.failed() || !session.lease().valid(destination, bytes) || !session.lease().valid(source, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return with_stream ? session.cuda().cuMemcpyDtoDAsync_v2(destination, source, bytes, stream)
                       : session.cuda().cuMemcpyDtoD_v2(destination, source, bytes);
}
CUresult serve_cuMemcpyDtoD_v2(Session& session, Reader& in, Writer&) { return copy(session, in, false); }
CUresult serve_cuMemcpyDtoDAsync_v2(Session& session, Reader& in, Writer&) { return copy(session, in, true); }

template <class T, class Function>
CUresult fill(Session& session, Reader& in, Function function, bool with_stream) {
    const auto address = in.get<CUdeviceptr>();
    const auto value = in.get<T>();
    const auto count = in.get<uint64_t>();
    CUstream stream = nullptr;
    if (with_stream && !session.handle(in.get<uint64_t>(), Kind::stream, stream))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!in.failed() && !count) return CUDA_SUCCESS;
    uint64_t bytes;
    if (in.failed() || __builtin_mul_overflow(count, sizeof(T), &bytes) ||
        !session.lease().valid(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if constexpr (std::is_invocable_v<Function, CUdeviceptr, T, size_t, CUstream>)
        return function(address, value, count, stream);
    else
        return function(address, value, count);
}
#define GPUKERNEL_FILL(name, type, stream)                           \
    CUresult serve_##name(Session& session, Reader& in, Writer&) {   \
        return fill<type>(session, in, session.cuda().name, stream); \
    }
GPUKERNEL_FILL(cuMemsetD8_v2, unsigned char, false)
GPUKERNEL_FILL(cuMemsetD16_v2, unsigned short, false)
GPUKERNEL_FILL(cuMemsetD32_v2, unsigned int, false)
GPUKERNEL_FILL(cuMemsetD8Async, unsigned char, true)
GPUKERNEL_FILL(cuMemsetD16Async, unsigned short, true)
GPUKERNEL_FILL(cuMemsetD32Async, unsigned int, true)

template <class T, class Function>
CUresult fill_2d(Session& session, Reader& in, Function function, bool with_stream) {
    const auto address = in.get<CUdeviceptr>();
    const auto pitch = in.get<uint64_t>();
    const auto value = in.get<T>();
    const auto width = in.get<uint64_t>(), height = in.get<uint64_t>();
    CUstream stream = nullptr;
    if (with_stream && !session.handle(in.get<uint64_t>(), Kind::stream, stream))
        return CUDA_ERROR_INVALID_HANDLE;
    uint64_t row, rows, bytes;
    if (!in.failed() && (!width || !height)) return CUDA_SUCCESS;
    if (in.failed() || __builtin_mul_overflow(width, sizeof(T), &row) ||
        (height > 1 && pitch < row) ||  // or the rows overlap, and their number has no bound
        __builtin_mul_overflow(pitch, height - 1, &rows) || __builtin_add_overflow(row, rows, &bytes) ||
        !session.lease().valid(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if constexpr (std::is_invocable_v<Function, CUdeviceptr, size_t, T, size_t, size_t, CUstream>)
        return function(address, pitch, value, width, height, stream);
    else
        return function(address, pitch, value, width, height);
}
#define GPUKERNEL_FILL_2D(name, type, stream)                           \
    CUresult serve_##name(Session& session, Reader& in, Writer&) {      \
        return fill_2d<type>(session, in, session.cuda().name, stream); \
    }
GPUKERNEL_FILL_2D(cuMemsetD2D8_v2, unsigned char, false)
GPUKERNEL_FILL_2D(cuMemsetD2D16_v2, unsigned short, false)
GPUKERNEL_FILL_2D(cuMemsetD2D32_v2, unsigned int, false)
GPUKERNEL_FILL_2D(cuMemsetD2D8Async, unsigned char, true)
GPUKERNEL_FILL_2D(cuMemsetD2D16Async, unsigned short, true)
GPUKERNEL_FILL_2D(cuMemsetD2D32Async, unsigned int, true)

// --- destruction: the handle's number is dropped first ---

template <class Handle, class Function>
CUresult end(Session& session, Reader& in, Kind kind, Function function) {
    const auto name = in.get<uint64_t>();
    Handle handle;
    // What belongs to another handle ends with that, as a library's module.
    if (name <= 2 || !session.handle(name, kind, handle) || session.parent_of(name))
        return CUDA_ERROR_INVALID_HANDLE;
    session.drop(name);
    return function(handle);
}
template <class Handle, class Function>
CUresult unload(Session& session, Reader& in, Kind kind, Function function) {
    std::lock_guard allocating(session.lease().allocation_mutex);
    return end<Handle>(session, in, kind, [&](Handle handle) {
        CUresult result = function(handle);
        session.lease().refund_module(handle);
        return result;
    });
}
CUresult serve_cuModuleUnload(Session& s, Reader& in, Writer&) {
    return unload<CUmodule>(s, in, Kind::module, s.cuda().cuModuleUnload);
}
CUresult serve_cuModuleGetFunction(Session& session, Reader& in, Writer& out) {
    CUmodule module;
    if (!session.handle(in.get<uint64_t>(), Kind::module, module)) return CUDA_ERROR_INVALID_HANDLE;
    const std::string name(in.text());
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    CUfunction function{};
    const CUresult result = load_charged(session, session.loaded_with(module), [&] {
        const CUresult found = session.cuda().cuModuleGetFunction(&function, module, name.c_str());
        const bool loads = found == CUDA_SUCCESS && session.lease().loads_lazily;
        return loads ? session.cuda().cuFuncLoad(function) : found;
    });
    if (result == CUDA_SUCCESS) out.put(session.number_of(function, Kind::function, module));
    return result;
}
CUresult serve_cuLibraryGetModule(Session& session, Reader& in, Writer& out) {
    CUlibrary library;
    if (!session.handle(in.get<uint64_t>(), Kind::library, library)) return CUDA_ERROR_INVALID_HANDLE;
    CUmodule module{};
    const CUresult result =
        load_charged(session, library, [&] { return session.cuda().cuLibraryGetModule(&module, library); });
    if (result == CUDA_SUCCESS) out.put(session.number_of(module, Kind::module, library));
    return result;
}
CUresult serve_cuLibraryUnload(Session& s, Reader& in, Writer&) {
    return unload<CUlibrary>(s, in, Kind::library, s.cuda().cuLibraryUnload);
}
CUresult serve_cuStreamDestroy_v2(Session& s, Reader& in, Writer&) {
    return end<CUstream>(s, in, Kind::stream, [&](CUstream stream) {
        if (FreedBlocks& freed = s.lease().freed; freed.any()) {
            std::lock_guard allocating(s.lease().allocation_mutex);
            freed.before_destruction(stream);
        }
        return s.destroy(stream, [&cuda = s.cuda(), stream] { return cuda.cuStreamDestroy_v2(stream); });
    });
}
CUresult serve_cuEventDestroy_v2(Session& s, Reader& in, Writer&) {
    return end<CUevent>(s, in, Kind::event, [&](CUevent event) {
        return s.destroy(
            event, [&lease = s.lease(), event] { return lease.shared_events.destroy(lease.cuda, event); });
    });
}
CUresult serve_cuLinkDestroy(Session& s, Reader& in, Writer&) {
    return end<CUlinkState>(s, in, Kind::link, s.cuda().cuLinkDestroy);
}

// --- handles that the shim numbers ---

static CUresult new_stream(Session& session, uint64_t name, unsigned flags, int priority) {
    CUstream stream;
    auto host = session.host_charge(HostMemory::STREAM);
    if (!host) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = session.cuda().cuStreamCreateWithPriority(&stream, flags, priority);
    if (result == CUDA_SUCCESS && !session.accept_number(name, stream, Kind::stream, std::move(*host))) {
        session.cuda().cuStreamDestroy_v2(stream);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return result;
}
CUresult serve_cuStreamCreate(Session& session, Reader& in, Writer&) {
    const auto name = in.get<uint64_t>();
    return new_stream(session, name, in.get<unsigned>(), 0);
}
CUresult serve_cuStreamCreateWithPriority(Session& session, Reader& in, Writer&) {
    const auto name = in.get<uint64_t>();
    const auto flags = in.get<unsigned>();
    return new_stream(session, name, flags, in.get<int>());
}
CUresult serve_cuEventCreate(Session& session, Reader& in, Writer&) {
    const auto name = in.get<uint64_t>();
    CUevent event;
    auto host = session.host_charge(HostMemory::EVENT);
    if (!host) return CUDA_ERROR_OUT_OF_MEMORY;
    // All programs have one context, in which any event can be shared.
    const auto flags = in.get<unsigned>();
    const bool shared = flags & CU_EVENT_INTERPROCESS;
    if (shared && !(flags & CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_VALUE;
    auto its = session.host_charge(shared ? HostMemory::EVENT : 0);
    if (!its) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = session.cuda().cuEventCreate(&event, flags & ~CU_EVENT_INTERPROCESS);
    if (result == CUDA_SUCCESS && !session.accept_number(name, event, Kind::event, std::move(*host))) {
        session.cuda().cuEventDestroy_v2(event);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (result == CUDA_SUCCESS && shared)
        session.lease().shared_events.add(event, session.program_number(), std::move(*its));
    return result;
}

// --- variables of modules ---

template <class Handle, class Function>
CUresult variable(Session& session, Reader& in, Writer& out, Kind kind, Function function) {
    Handle handle;
    if (!session.handle(in.get<uint64_t>(), kind, handle)) return CUDA_ERROR_INVALID_HANDLE;
    const std::string name(in.text());
    CUdeviceptr address = 0;
    size_t bytes = 0;
    // A library's are there once it is loaded into the context.
    CUresult result = load_charged(session, session.loaded_with(handle),
                                   [&] { return function(&address, &bytes, handle, name.c_str()); });
    if (result != CUDA_SUCCESS) return result;
    unsigned managed = 0;  // the program asks again, and has memory of its own at that address
    if (session.cuda().cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) ==
            CUDA_SUCCESS &&
        managed)
        return CUDA_ERROR_NOT_SUPPORTED;
    session.lease().add_variable(address, bytes, &session, session.loaded_with(handle));
    out.put(address);
    out.put<uint64_t>(bytes);
    return result;
}
CUresult serve_managed_variable(Session& session, Reader& in, Writer& out) {
    const auto request = wire::ManagedVariableRequest::read(in);
    const std::string name(request.name);
    CUdeviceptr address = 0;
    size_t bytes = 0;
    CUmodule module;
    CUlibrary library = nullptr;
    const bool of_module = session.handle(request.owner, Kind::module, module);
    if (!of_module && !session.handle(request.owner, Kind::library, library))
        return CUDA_ERROR_INVALID_HANDLE;
    const void* const owner = of_module ? static_cast<void*>(module) : library;
    const CUresult result = load_charged(session, session.loaded_with(owner), [&] {
        return of_module ? session.cuda().cuModuleGetGlobal_v2(&address, &bytes, module, name.c_str())
                         : session.cuda().cuLibraryGetManaged(&address, &bytes, library, name.c_str());
    });
    if (result != CUDA_SUCCESS) return result;
    session.lease().add_variable(address, bytes, &session, session.loaded_with(owner));
    wire::ManagedVariableAnswer{address, bytes}.write(out);
    return CUDA_SUCCESS;
}
CUresult serve_cuModuleGetGlobal_v2(Session& s, Reader& in, Writer& out) {
    return variable<CUmodule>(s, in, out, Kind::module, s.cuda().cuModuleGetGlobal_v2);
}
CUresult serve_cuLibraryGetGlobal(Session& s, Reader& in, Writer& out) {
    return variable<CUlibrary>(s, in, out, Kind::library, s.cuda().cuLibraryGetGlobal);
}

// --- waiting ---

CUresult serve_cuStreamSynchronize(Session& session, Reader& in, Writer&) {
    CUstream stream;
    if (!session.handle(in.get<uint64_t>(), Kind::stream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    return session.wait_for(stream);
}
CUresult serve_cuEventSynchronize(Session& session, Reader& in, Writer&) {
    CUevent event;
    if (!session.handle(in.get<uint64_t>(), Kind::event, event)) return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = session.wait([&] { return session.cuda().cuEventSynchronize(event); }, event);
    session.lease().finished();
    return result;
}
CUresult serve_cuCtxSynchronize(Session& session, Reader&, Writer&) { return session.wait_for_all(); }

const ServedCall* driver_call(uint16_t number) {
    if (number < wire::FIRST_DRIVER_CALL || number >= static_cast<uint16_t>(wire::DriverCall::end))
        return nullptr;
    return &driver_calls[number - wire::FIRST_DRIVER_CALL];
}

}  // namespace gpukernel::worker
