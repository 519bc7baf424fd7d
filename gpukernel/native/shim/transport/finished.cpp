#include "shim/transport/finished.h"

#include <algorithm>

#include "shim/managed/managed.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

namespace {
using wire::CustomCall;
using wire::DriverCall;

// Whether a read or a wait in `stream` is over that came after the request `number`.
bool passed(const Connection& connection, uint64_t stream, uint64_t number) {
    const Finished& finished = connection.finished;
    const Foresight& foresight = connection.foresight;
    return (finished.up_to && finished.up_to >= number && finished.stream == stream) ||
           (foresight.last && foresight.last >= number && foresight.over == foresight.last &&
            foresight.stream == stream);
}

// Where there is but one stream, what holds for it holds for the device.
bool idle(const Connection& connection) {
    const Finished& finished = connection.finished;
    return finished.all >= finished.work ||
           (!finished.made_streams && passed(connection, canonical(0), finished.work));
}

bool done(const Connection& connection, uint64_t stream) {
    return idle(connection) || passed(connection, stream, connection.finished.work);
}

bool exists(const Connection& connection, CUstream stream) {
    const auto number = reinterpret_cast<uint64_t>(stream);
    return number <= reinterpret_cast<uint64_t>(CU_STREAM_PER_THREAD) ||
           connection.finished.streams.contains(number);
}

// Whether the program may be told without a question that all is well.
bool may_answer(Connection& connection) {
    return connection.deferred_error == CUDA_SUCCESS &&
           connection.finished.unsure <= connection.finished.told && connection.is_there();
}

bool is_done(Connection& connection, CUevent event) {
    if (has_mirrors()) return false;  // a wait stores here what kernels wrote
    std::lock_guard lock(connection.mutex);
    const auto found = connection.finished.events.find(reinterpret_cast<uint64_t>(event));
    if (found == connection.finished.events.end()) return false;
    const auto [number, stream] = found->second;
    const bool known = !number || connection.finished.all >= number || passed(connection, stream, number);
    return known && may_answer(connection);
}

void recorded(Connection& connection, CUevent event, CUstream stream) {
    const auto found = connection.finished.events.find(reinterpret_cast<uint64_t>(event));
    if (found == connection.finished.events.end()) return;
    const uint64_t of = canonical(stream_name(connection, stream));
    const uint64_t number = connection.foresight.requests;
    if (exists(connection, stream)) connection.finished.sure = number;
    found->second = {done(connection, of) ? 0 : number, of};
}
}  // namespace

// What is not named here may.
bool leaves_work(uint16_t call) {
    switch (call) {
        case static_cast<uint16_t>(CustomCall::device):
        case static_cast<uint16_t>(CustomCall::usage):
        case static_cast<uint16_t>(CustomCall::introduce):
        case static_cast<uint16_t>(CustomCall::attend):
        case static_cast<uint16_t>(CustomCall::kernel_layout):
        case static_cast<uint16_t>(CustomCall::best_block_size):
        case static_cast<uint16_t>(CustomCall::pointer_attribute):
        case static_cast<uint16_t>(CustomCall::virtual_memory):
        case static_cast<uint16_t>(CustomCall::copy_to_host):
        case static_cast<uint16_t>(DriverCall::cuMemAlloc_v2):
        case static_cast<uint16_t>(DriverCall::cuMemGetInfo_v2):
        case static_cast<uint16_t>(DriverCall::cuFuncGetAttribute):
        case static_cast<uint16_t>(DriverCall::cuStreamCreate):
        case static_cast<uint16_t>(DriverCall::cuStreamCreateWithPriority):
        case static_cast<uint16_t>(DriverCall::cuStreamSynchronize):
        case static_cast<uint16_t>(DriverCall::cuStreamQuery):
        case static_cast<uint16_t>(DriverCall::cuStreamGetFlags):
        case static_cast<uint16_t>(DriverCall::cuStreamGetPriority):
        case static_cast<uint16_t>(DriverCall::cuEventCreate):
        case static_cast<uint16_t>(DriverCall::cuEventDestroy_v2):
        case static_cast<uint16_t>(DriverCall::cuEventRecord):  // done when what is before it is
        case static_cast<uint16_t>(DriverCall::cuEventRecordWithFlags):
        case static_cast<uint16_t>(DriverCall::cuEventQuery):
        case static_cast<uint16_t>(DriverCall::cuEventSynchronize):
        case static_cast<uint16_t>(DriverCall::cuEventElapsedTime):
        case static_cast<uint16_t>(DriverCall::cuCtxSynchronize):
            return false;
        default:
            return true;
    }
}

uint64_t canonical(uint64_t stream) {
    return stream == 0 ? reinterpret_cast<uint64_t>(CU_STREAM_LEGACY) : stream;
}

void note_idle(Connection& connection, uint64_t number) {
    std::lock_guard lock(connection.mutex);
    connection.finished.all = std::max(connection.finished.all, number);
}

void note_stream(Connection& connection, uint64_t stream, uint64_t number) {
    std::lock_guard lock(connection.mutex);
    connection.finished.stream = canonical(stream), connection.finished.up_to = number;
}

void note_request(Connection& connection, uint16_t call) {
    Finished& finished = connection.finished;
    if (leaves_work(call)) finished.work = connection.foresight.requests;
    switch (call) {
        case static_cast<uint16_t>(DriverCall::cuStreamCreate):
        case static_cast<uint16_t>(DriverCall::cuStreamCreateWithPriority):
            finished.made_streams = true;
            break;
        case static_cast<uint16_t>(CustomCall::reset):
            finished.events.clear(), finished.streams.clear();
            break;
        default:
            break;
    }
}

void note_queued(Connection& connection) {
    if (connection.finished.sure != connection.foresight.requests)
        connection.finished.unsure = connection.foresight.requests;
}

void note_answer(Connection& connection, uint64_t number) {
    std::atomic<uint64_t>& told = connection.finished.told;
    for (uint64_t before = told; before < number && !told.compare_exchange_weak(before, number);) {
    }
}

uint64_t requests_so_far(Connection& connection) {
    std::lock_guard lock(connection.mutex);
    return connection.foresight.requests;
}

bool is_idle(Connection& connection) {
    std::lock_guard lock(connection.mutex);
    return idle(connection) && connection.is_there();
}

bool is_over(Connection& connection) {
    std::lock_guard lock(connection.mutex);
    return idle(connection) && may_answer(connection);
}

bool is_done(Connection& connection, CUstream stream) {
    const uint64_t of = canonical(stream_name(connection, stream));
    std::lock_guard lock(connection.mutex);
    return exists(connection, stream) && done(connection, of) && may_answer(connection);
}

// --- hooks of the calls of codegen/calls.txt: before a request, and in it, under the mutex ---

std::optional<CUresult> foreseen_cuStreamSynchronize(Connection& connection, CUstream stream) {
    if (!is_done(connection, stream)) return std::nullopt;
    if (has_managed()) return waited_here(connection);
    return CUDA_SUCCESS;
}
std::optional<CUresult> foreseen_cuStreamQuery(Connection& connection, CUstream stream) {
    return foreseen_cuStreamSynchronize(connection, stream);
}
std::optional<CUresult> foreseen_cuEventSynchronize(Connection& connection, CUevent event) {
    return is_done(connection, event) ? std::optional(CUDA_SUCCESS) : std::nullopt;
}
std::optional<CUresult> foreseen_cuEventQuery(Connection& connection, CUevent event) {
    return foreseen_cuEventSynchronize(connection, event);
}
// Nothing has to wait for what is done.
std::optional<CUresult> foreseen_cuStreamWaitEvent(Connection& connection, CUstream stream, CUevent event,
                                                   unsigned flags) {
    if (flags || !is_done(connection, event)) return std::nullopt;
    std::lock_guard lock(connection.mutex);
    return exists(connection, stream) ? std::optional(CUDA_SUCCESS) : std::nullopt;
}

void noted_cuStreamCreate(Connection& connection, CUstream* stream, unsigned) {
    connection.finished.streams.insert(reinterpret_cast<uint64_t>(*stream));
    connection.finished.sure = connection.foresight.requests;
}
void noted_cuStreamCreateWithPriority(Connection& connection, CUstream* stream, unsigned flags, int) {
    noted_cuStreamCreate(connection, stream, flags);
}
void noted_cuStreamDestroy_v2(Connection& connection, CUstream stream) {
    if (connection.finished.streams.erase(reinterpret_cast<uint64_t>(stream)))
        connection.finished.sure = connection.foresight.requests;
}
void noted_cuEventCreate(Connection& connection, CUevent* event, unsigned flags) {
    if (flags & ~(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)) return;  // another program may record it
    connection.finished.events[reinterpret_cast<uint64_t>(*event)] = {};
    connection.finished.sure = connection.foresight.requests;
}
void noted_cuEventDestroy_v2(Connection& connection, CUevent event) {
    if (connection.finished.events.erase(reinterpret_cast<uint64_t>(event)))
        connection.finished.sure = connection.foresight.requests;
}
void noted_cuEventRecord(Connection& connection, CUevent event, CUstream stream) {
    recorded(connection, event, stream);
}
void noted_cuEventRecordWithFlags(Connection& connection, CUevent event, CUstream stream, unsigned) {
    recorded(connection, event, stream);
}

}  // namespace gpukernel::shim
