// What the programs of a lease share by name (driver API, IPC functions of chapter "Device Management", and
// the shareable handles of chapter "Virtual Memory Management").  They share the context as well, so to open
// something is to be told where it is.
#include "worker/session/session.h"

namespace gpukernel::worker {

CUresult serve_name_memory(Session& session, Reader& in, Writer& out) {
    const auto request = wire::NameMemoryRequest::read(in);
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    const auto name = session.lease().name_of(request.address, &session);
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    wire::NameMemoryAnswer{(*name)[0], (*name)[1]}.write(out);
    return CUDA_SUCCESS;
}

CUresult serve_find_memory(Session& session, Reader& in, Writer& out) {
    const auto request = wire::FindMemoryRequest::read(in);
    CUdeviceptr address = 0;
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = session.lease().find({request.first, request.second}, &session, address);
    if (result == CUDA_SUCCESS) wire::FindMemoryAnswer{address}.write(out);
    return result;
}

CUresult serve_name_physical(Session& session, Reader& in, Writer& out) {
    const auto request = wire::NamePhysicalRequest::read(in);
    SharedName name;
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = session.virtual_memory().share(request.memory, name);
    if (result == CUDA_SUCCESS) wire::NamePhysicalAnswer{name[0], name[1]}.write(out);
    return result;
}

CUresult serve_open_physical(Session& session, Reader& in, Writer& out) {
    const auto request = wire::OpenPhysicalRequest::read(in);
    uint64_t memory = 0;
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = session.virtual_memory().open({request.first, request.second}, memory);
    if (result == CUDA_SUCCESS) wire::OpenPhysicalAnswer{memory}.write(out);
    return result;
}

CUresult serve_name_event(Session& session, Reader& in, Writer& out) {
    const auto request = wire::NameEventRequest::read(in);
    CUevent event;
    if (in.failed() || !session.handle(request.event, Kind::event, event)) return CUDA_ERROR_INVALID_HANDLE;
    const auto name = session.lease().shared_events.name_of(event);
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    wire::NameEventAnswer{(*name)[0], (*name)[1]}.write(out);
    return CUDA_SUCCESS;
}

CUresult serve_open_event(Session& session, Reader& in, Writer&) {
    const auto request = wire::OpenEventRequest::read(in);
    if (in.failed() || !request.handle) return CUDA_ERROR_INVALID_VALUE;
    auto host = session.host_charge(HostMemory::HANDLE);
    if (!host) return CUDA_ERROR_OUT_OF_MEMORY;
    SharedEvents& events = session.lease().shared_events;
    CUevent event;
    CUresult result = events.open({request.first, request.second}, session.program_number(), event);
    if (result == CUDA_SUCCESS &&
        !session.accept_number(*request.handle, event, Kind::event, std::move(*host))) {
        events.destroy(session.cuda(), event);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return result;
}

}  // namespace gpukernel::worker
