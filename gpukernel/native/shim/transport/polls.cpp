// Events of which a program asks again and again whether they are done.
//
// Where it has asked for an event of a stream that was not done, the worker reports by itself when the stream
// comes to the next ones (modules/host_functions.h).  Until it does, a question is answered here: the
// event is not done.  That is never said for long: a question comes to the worker where the last one, or the
// event's record, is some time ago, so what is lost or late on the way is found.  How long that is depends on
// how far the worker is: a report is on its way for as long as an answer.
#include <algorithm>

#include "shim/managed/managed.h"
#include "shim/modules/host_functions.h"
#include "shim/transport/copies.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

namespace {
using Clock = std::chrono::steady_clock;
// How long a report is waited for: so many round trips, but at least and at most
constexpr int TRIPS_BELIEVED = 4;
constexpr Clock::duration LEAST_BELIEVED = std::chrono::milliseconds(50);
constexpr Clock::duration MOST_BELIEVED = std::chrono::seconds(1);
constexpr int MOST_UNASKED =
    16;  // reports of a stream after which none is asked for, until its events are again

// Whether the next event in a stream is worth a report.
bool is_polled(Connection& connection, CUevent event, uint64_t stream) {
    std::lock_guard lock(connection.mutex);
    const Finished::Stream* const of = find_stream(connection, stream);
    return of && of->reports && !of->blocks && connection.tells_of_streams && !has_mirrors() &&
           find_event(connection, event) && !may_settle(connection, stream);
}

void ask_for_report(Connection& connection, CUevent event, uint64_t stream) {
    if (!expect_report(connection)) return;
    std::lock_guard lock(connection.mutex);
    Finished::Recording* const found = find_event(connection, event);
    if (!found || !found->number || found->stream != stream) return forget_report(connection);
    add_report(connection, stream);
    found->reported = true, found->asked = Clock::now();
    if (Finished::Stream* const of = find_stream(connection, stream); of && of->reports) --of->reports;
}

// An event that is reported; what is said of it here ends with an error.  Once it is done, so is what was
// recorded before it.
CUresult ask(Connection& connection, CUevent event, const Finished::Recording& recorded) {
    CUresult result;
    const auto asked = Clock::now();
    {
        Request request(connection, wire::DriverCall::cuEventQuery);
        request.put(reinterpret_cast<uint64_t>(event));
        result = request.send();
    }
    const Clock::duration taken = Clock::now() - asked;
    std::lock_guard lock(connection.mutex);
    connection.finished.round_trip = taken;
    if (Finished::Recording* const found = find_event(connection, event)) {
        found->asked = Clock::now();
        if (result != CUDA_ERROR_NOT_READY) found->reported = false;
        if (result == CUDA_SUCCESS && found->number == recorded.number)  // not recorded again meanwhile
            pass(connection, recorded.stream, recorded.number);
    }
    return result;
}
}  // namespace

std::optional<CUresult> foreseen_cuEventRecord(Connection& connection, CUevent event, CUstream stream) {
    gate_unknown_event(connection, event, stream);
    const uint64_t name = stream_name(connection, stream);
    if (!is_polled(connection, event, canonical(name))) return std::nullopt;
    CUresult result;
    {
        Request request(connection, wire::DriverCall::cuEventRecord, name);
        request.put(reinterpret_cast<uint64_t>(event));
        request.put(name);
        note_recorded(connection, event, canonical(name));
        result = request.queue();
    }
    if (result == CUDA_SUCCESS) ask_for_report(connection, event, canonical(name));
    return result;
}
std::optional<CUresult> foreseen_cuEventRecordWithFlags(Connection& connection, CUevent event,
                                                        CUstream stream, unsigned flags) {
    if (!flags) return foreseen_cuEventRecord(connection, event, stream);
    gate_unknown_event(connection, event, stream);
    return std::nullopt;
}

std::optional<CUresult> foreseen_cuEventQuery(Connection& connection, CUevent event) {
    std::unique_lock lock(connection.mutex);
    Finished::Recording* const found = find_event(connection, event);
    if (!found) return std::nullopt;
    if (!has_run(connection, found->call))
        return connection.alive() ? std::optional(CUDA_ERROR_NOT_READY) : std::nullopt;
    if (has_mirrors()) return std::nullopt;  // a wait stores here what kernels wrote
    if (may_answer_poll(connection)) {
        const bool is_over = passed(connection, *found) || settle_copies(connection, event, *found);
        Finished::Stream* const of = find_stream(connection, found->stream);
        if (of && (found->reported || !is_over)) of->reports = MOST_UNASKED;
        if (is_over) return CUDA_SUCCESS;
        const auto believed =
            std::clamp(TRIPS_BELIEVED * connection.finished.round_trip, LEAST_BELIEVED, MOST_BELIEVED);
        if (found->reported && Clock::now() - found->asked < believed) return CUDA_ERROR_NOT_READY;
    }
    if (!found->reported || has_managed()) return std::nullopt;
    const Finished::Recording recorded = *found;
    lock.unlock();
    return ask(connection, event, recorded);
}

}  // namespace gpukernel::shim
