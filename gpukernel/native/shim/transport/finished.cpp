#include "shim/transport/finished.h"

#include <algorithm>
#include <array>

#include "shim/managed/managed.h"
#include "shim/modules/local_calls.h"
#include "shim/transport/copies.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

namespace {
using wire::CustomCall;
using wire::DriverCall;

// Each request asks for its stream, which mostly is the one before's.
inline Finished::Stream* find(Connection& connection, uint64_t stream) {
    const auto& [name, latest] = connection.finished.latest;
    return latest && name == stream ? latest : find_stream(connection, stream);
}

// The newest request of this thread that can fail and gets no answer, and its connection.
GPUKERNEL_STATIC_THREAD_LOCAL std::pair<const Connection*, uint64_t> own_unsure{nullptr, 0};

}  // namespace

void note_passed(Connection& connection, uint64_t stream, uint64_t number) {
    // That a wait for the legacy stream is one for all that block is not said of every driver.
    const Finished& finished = connection.finished;
    const bool alone = std::none_of(finished.streams.begin(), finished.streams.end(), [](const auto& one) {
        return one.second.blocks && one.first != canonical(0);
    });
    if (alone || canonical(stream) != canonical(0)) pass(connection, canonical(stream), number);
}

namespace {

// Takes note of what was told, and of a read that is over (foresight.h).
void look_at_reads(Connection& connection) {
    look_at_news(connection);
    const Foresight& foresight = connection.foresight;
    if (foresight.last && foresight.over == foresight.last)
        pass(connection, foresight.stream, foresight.last);
}

bool done(Connection& connection, const Finished::Stream& stream) {
    const Finished& finished = connection.finished;
    // The legacy stream comes after all that block, and they come after it.
    const Finished::Stream& legacy = finished.streams.at(canonical(0));
    uint64_t work = std::max(stream.work, finished.anywhere);
    if (&stream == &legacy) work = std::max(work, finished.blocking);
    if (stream.blocks) work = std::max(work, legacy.work);
    return std::max(stream.passed, finished.all) >= work;
}
bool done(Connection& connection, uint64_t stream) {
    look_at_reads(connection);
    const Finished::Stream* const found = find(connection, stream);
    return found && done(connection, *found);
}

// Where there is but one stream, what holds for it holds for the device.
bool idle(Connection& connection) {
    look_at_reads(connection);
    const Finished& finished = connection.finished;
    const Finished::Stream& legacy = *find(connection, canonical(0));
    const uint64_t all = finished.made_streams ? finished.all : std::max(finished.all, legacy.passed);
    if (all < finished.anywhere || all < finished.gone) return false;
    return std::all_of(finished.streams.begin(), finished.streams.end(),
                       [&](const auto& one) { return std::max(all, one.second.passed) >= one.second.work; });
}

bool is_done(Connection& connection, CUevent event) {
    if (has_mirrors()) return false;  // a wait stores here what kernels wrote
    std::lock_guard lock(connection.mutex);
    const Finished::Recording* const found = find_event(connection, event);
    return found && has_run(connection, found->call) && may_answer(connection) &&
           (passed(connection, *found) || settle_copies(connection, event, *found));
}

// The host function that an event or a stream comes after and that has not run; 0: none.
uint64_t call_before(Connection& connection, CUevent event) {
    std::lock_guard lock(connection.mutex);
    const Finished::Recording* const found = find_event(connection, event);
    return found && !has_run(connection, found->call) ? found->call : 0;
}
uint64_t call_before(Connection& connection, CUstream stream) {
    const uint64_t of = canonical(stream_name(connection, stream));
    std::lock_guard lock(connection.mutex);
    const Finished::Stream* const found = find(connection, of);
    return found && !has_run(connection, found->call) ? found->call : 0;
}

bool is_open(const Connection& connection, const Finished::Stream& stream) {
    const uint64_t known = std::max(stream.passed, connection.finished.all);
    const bool refused = stream.gate.errors != connection.errors;  // perhaps
    return stream.open > known ||
           (refused && (stream.gate.open > known || !has_run(connection, stream.gate.call)));
}
// The function run in the program that a stream's next gate waits for.
uint64_t call_of_gate(const Connection& connection, const Finished::Stream& stream) {
    const uint64_t call = std::max(stream.call, stream.gate.call);
    return has_run(connection, call) ? 0 : call;
}
// What may come behind a function that the worker does not wait for, or that runs in the program: it needs no
// more than that one's turn, which is kept here.
bool comes_behind(uint16_t call) {
    switch (call) {
        case static_cast<uint16_t>(CustomCall::host_function):
        case static_cast<uint16_t>(DriverCall::cuStreamWaitEvent):
        case static_cast<uint16_t>(DriverCall::cuStreamDestroy_v2):
        case static_cast<uint16_t>(DriverCall::cuStreamGetFlags):
        case static_cast<uint16_t>(DriverCall::cuStreamGetPriority):
            return true;
        default:
            return false;
    }
}

// Has later work of a stream wait for its host functions, and for one that runs in the program.
void gate(Connection& connection, uint64_t stream, uint64_t call) {
    const uint64_t gate = add_gate(connection, stream, call);
    if (Finished::Stream* const of = find(connection, stream)) {
        of->gate = {std::max(of->open, of->gate.open), call, connection.errors};
        of->work = of->other = gate, of->call = of->open = 0;
    }
    connection.finished.unsure = gate;
}
// What is not named here, and does not only ask, may.
constexpr bool may_leave_work(uint16_t call) {
    switch (call) {
        case static_cast<uint16_t>(CustomCall::introduce):
        case static_cast<uint16_t>(CustomCall::attend):
        case static_cast<uint16_t>(CustomCall::virtual_memory):
        case static_cast<uint16_t>(CustomCall::copy_to_host):
        case static_cast<uint16_t>(DriverCall::cuMemAlloc_v2):
        case static_cast<uint16_t>(DriverCall::cuStreamCreate):
        case static_cast<uint16_t>(DriverCall::cuStreamCreateWithPriority):
        case static_cast<uint16_t>(DriverCall::cuStreamDestroy_v2):
        case static_cast<uint16_t>(DriverCall::cuStreamSynchronize):
        case static_cast<uint16_t>(DriverCall::cuStreamQuery):
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
            return !wire::only_asks(call);
    }
}

// What is not named here does what it leaves as work.
constexpr Change may_change(uint16_t call) {
    switch (call) {
        case static_cast<uint16_t>(CustomCall::host_function):
        case static_cast<uint16_t>(DriverCall::cuStreamWaitEvent):
            return Change::none;
        case static_cast<uint16_t>(CustomCall::load_image):
        case static_cast<uint16_t>(CustomCall::load_library):
        case static_cast<uint16_t>(CustomCall::functions):
        case static_cast<uint16_t>(CustomCall::keep_block):
        case static_cast<uint16_t>(CustomCall::take_block):
        case static_cast<uint16_t>(CustomCall::virtual_memory):
        case static_cast<uint16_t>(DriverCall::cuMemAlloc_v2):
        case static_cast<uint16_t>(DriverCall::cuMemFree_v2):
        case static_cast<uint16_t>(DriverCall::cuModuleGetFunction):
        case static_cast<uint16_t>(DriverCall::cuModuleGetGlobal_v2):
        case static_cast<uint16_t>(DriverCall::cuModuleUnload):
        case static_cast<uint16_t>(DriverCall::cuLibraryGetKernel):
        case static_cast<uint16_t>(DriverCall::cuLibraryGetModule):
        case static_cast<uint16_t>(DriverCall::cuLibraryGetGlobal):
        case static_cast<uint16_t>(DriverCall::cuLibraryUnload):
        case static_cast<uint16_t>(DriverCall::cuKernelGetFunction):
        case static_cast<uint16_t>(DriverCall::cuFuncGetModule):
        case static_cast<uint16_t>(DriverCall::cuFuncSetAttribute):
        case static_cast<uint16_t>(DriverCall::cuFuncSetCacheConfig):
        case static_cast<uint16_t>(DriverCall::cuFuncLoad):
        case static_cast<uint16_t>(DriverCall::cuKernelGetAttribute):
        case static_cast<uint16_t>(DriverCall::cuKernelSetAttribute):
        case static_cast<uint16_t>(DriverCall::cuKernelSetCacheConfig):
            return Change::at_once;
        default:
            return may_leave_work(call) ? Change::by_work : Change::none;
    }
}

// Whether what is left is more than a copy that cannot fail, or a wait for what is known, as hooks say.
constexpr bool is_other_work(uint16_t call) {
    return call != static_cast<uint16_t>(CustomCall::copy_to_device) &&
           call != static_cast<uint16_t>(DriverCall::cuStreamWaitEvent);
}
constexpr bool concerns_streams(uint16_t call) {
    return call == static_cast<uint16_t>(DriverCall::cuStreamCreate) ||
           call == static_cast<uint16_t>(DriverCall::cuStreamCreateWithPriority) ||
           call == static_cast<uint16_t>(CustomCall::reset);
}

struct Effect {
    bool work;
    Change change;
    bool other, streams;
};
constexpr auto EFFECTS = [] {
    std::array<Effect, static_cast<size_t>(DriverCall::end)> all{};
    for (size_t n = 0; n < all.size(); ++n) {
        const auto call = static_cast<uint16_t>(n);
        all[n] = {may_leave_work(call), may_change(call), is_other_work(call), concerns_streams(call)};
    }
    return all;
}();
// By its number: each request asks.
Effect effect_of(uint16_t call) {
    return call < EFFECTS.size() ? EFFECTS[call] : Effect{true, Change::by_work, true, false};
}
}  // namespace

Finished::Stream* find_stream(Connection& connection, uint64_t stream) {
    Finished& finished = connection.finished;
    if (finished.latest.second && finished.latest.first == stream) return finished.latest.second;
    const auto found = finished.streams.find(stream);
    if (found == finished.streams.end()) return nullptr;
    finished.latest = {stream, &found->second};
    return &found->second;
}
Finished::Recording* find_event(Connection& connection, CUevent event) {
    const auto found = connection.finished.events.find(reinterpret_cast<uint64_t>(event));
    return found == connection.finished.events.end() ? nullptr : &found->second;
}

bool has_run(const Connection& connection, uint64_t call) { return connection.finished.run >= call; }
bool passed(Connection& connection, const Finished::Recording& event) {
    if (event.number <= connection.finished.all) return true;  // 0, too
    look_at_reads(connection);
    const Finished::Stream* const of = find(connection, event.stream);
    return of && of->passed >= event.number;
}

void pass(Connection& connection, uint64_t stream, uint64_t number) {
    std::vector<std::pair<uint64_t, uint64_t>> left{{stream, number}};
    while (!left.empty()) {
        const auto [name, up_to] = left.back();
        left.pop_back();
        Finished::Stream* const of = find(connection, name);
        if (!of || of->passed >= up_to) continue;
        of->passed = up_to;
        std::erase_if(of->joins, [&](const Finished::Join& join) {
            if (join.number > up_to) return false;
            left.emplace_back(join.event.stream, join.event.number);
            return true;
        });
    }
}

bool may_answer(Connection& connection) {
    return connection.deferred_error == CUDA_SUCCESS &&
           connection.finished.unsure <= connection.finished.told && connection.is_there();
}
bool may_answer_poll(Connection& connection) {
    const auto [of, number] = own_unsure;  // of one device; what this thread queued on another may be any
    const uint64_t mine = of == &connection ? number : of ? connection.finished.unsure : 0;
    return connection.deferred_error == CUDA_SUCCESS && mine <= connection.finished.told &&
           connection.is_there();
}

void note_recorded(Connection& connection, CUevent event, uint64_t stream) {
    Finished::Recording* const found = find_event(connection, event);
    const uint64_t number = connection.foresight.requests;
    Finished::Stream* const in = find(connection, stream);
    // The worker is asked for one that is not known, and may not know yet that a function has run before it.
    if (!found) (in ? in->work : connection.finished.anywhere) = number;
    if (!found) return;
    if (in) connection.finished.sure = number;
    found->number = in && done(connection, stream) ? 0 : number;
    found->stream = stream, found->reported = false;
    found->call = in ? std::max(in->call, in->gate.call) : 0;
    found->other = in ? std::max(in->other, connection.finished.anywhere) : number;
}

bool leaves_work(uint16_t call) { return effect_of(call).work; }
Change changes_memory(uint16_t call) { return effect_of(call).change; }

void note_idle(Connection& connection, uint64_t number) {
    std::lock_guard lock(connection.mutex);
    connection.finished.all = std::max(connection.finished.all, number);
    for (auto& [name, stream] : connection.finished.streams)
        std::erase_if(stream.joins, [&](const Finished::Join& join) { return join.number <= number; });
}

void note_stream(Connection& connection, uint64_t stream, uint64_t number) {
    std::lock_guard lock(connection.mutex);
    note_passed(connection, stream, number);
}

void look_at_news(Connection& connection) {
    News& news = connection.news;
    if (!news.any) return;
    std::unordered_map<uint64_t, uint64_t> passed;
    std::deque<News::Function> functions;
    {
        std::lock_guard lock(news.mutex);
        passed.swap(news.passed), functions.swap(news.functions), news.any = false;
    }
    for (const auto& [stream, number] : passed) note_passed(connection, stream, number);
    for (const News::Function& function : functions) note_function(connection, function);
}

void tell_passed(Connection& connection, uint64_t stream, uint64_t request) {
    News& news = connection.news;
    std::lock_guard lock(news.mutex);
    uint64_t& passed = news.passed[stream];
    passed = std::max(passed, request), news.any = true;
}

void tell_function(Connection& connection, News::Function function) {
    if (function.question.settles == Settles::no) return;
    News& news = connection.news;
    if (!function.early.empty()) {
        note_answer(connection, function.request);  // no error was left to be told
        if (function.early[0]) tell_passed(connection, canonical(0), function.request);
    }
    std::lock_guard lock(news.mutex);
    if (news.functions.size() == News::MOST) news.functions.pop_front();
    news.functions.push_back(std::move(function)), news.any = true;
}

void note_made_stream(Connection& connection, uint64_t stream, bool blocks) {
    connection.finished.streams[stream].blocks = blocks;
}

void gate_request(Connection& connection, uint16_t call, std::optional<uint64_t> stream) {
    Finished& finished = connection.finished;
    look_at_news(connection);
    const bool works = leaves_work(call) || call == static_cast<uint16_t>(CustomCall::copy_to_host);
    const auto gate_where_needed = [&](uint64_t name, const Finished::Stream& of, bool waits) {
        if (waits && ((works && !has_run(connection, of.call)) || is_open(connection, of)))
            gate(connection, name, call_of_gate(connection, of));
    };
    if (const Finished::Stream* const of = stream ? find(connection, canonical(*stream)) : nullptr)
        return gate_where_needed(canonical(*stream), *of, !comes_behind(call));
    const bool all = works || call == static_cast<uint16_t>(DriverCall::cuCtxSynchronize);
    for (const auto& [name, each] : finished.streams) gate_where_needed(name, each, all);
}

void note_request(Connection& connection, uint16_t call, std::optional<uint64_t> stream) {
    Finished& finished = connection.finished;
    const uint64_t number = connection.foresight.requests;
    const auto [works, change, other, streams] = effect_of(call);
    Finished::Stream* const of =
        stream && (works || change == Change::by_work) ? find(connection, canonical(*stream)) : nullptr;
    if (works) {
        (of ? of->work : finished.anywhere) = number;
        if (of && of->blocks) finished.blocking = number;
        if (of && other) of->other = number;
    }
    if (change != Change::none) finished.changed = number;
    if (change == Change::by_work) (of ? of->changes : finished.changes) = number;
    if (!streams) return;
    if (call != static_cast<uint16_t>(CustomCall::reset)) {
        finished.made_streams = true;
        return;
    }
    finished.events.clear(), connection.spares.blocks.clear();
    std::erase_if(finished.streams, [](const auto& one) { return one.first != canonical(0); });
    finished.latest = {};
}

void note_queued(Connection& connection) {
    const uint64_t number = connection.foresight.requests;
    if (connection.finished.sure != number)
        connection.finished.unsure = number, own_unsure = {&connection, number};
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
    const Finished::Stream* const found = find(connection, of);
    return found && has_run(connection, found->call) && may_answer(connection) &&
           (done(connection, of) || idle(connection) || settle_copies(connection, of));
}

std::unordered_map<uint64_t, uint64_t> finished_with(Connection& connection, uint64_t stream, uint64_t number,
                                                     uint64_t& call) {
    std::unordered_map<uint64_t, uint64_t> finished{{stream, number}};
    for (std::vector<uint64_t> left{stream}; !left.empty();) {
        const uint64_t name = left.back(), up_to = finished[name];
        left.pop_back();
        const Finished::Stream* const of = find(connection, name);
        if (!of) continue;
        for (const Finished::Join& join : of->joins) {
            if (join.number > up_to) continue;
            call = std::max(call, join.event.call);
            uint64_t& then = finished[join.event.stream];
            if (then >= join.event.number) continue;
            then = join.event.number;
            left.push_back(join.event.stream);
        }
    }
    return finished;
}

Settles settles(Connection& connection, uint64_t stream) {
    look_at_reads(connection);
    const Finished& finished = connection.finished;
    if (!find(connection, stream) || std::max(finished.changes, finished.gone) > finished.all)
        return Settles::no;
    uint64_t call = 0;
    const auto finished_then = finished_with(connection, stream, UINT64_MAX, call);
    Settles all = Settles::yes;
    for (const auto& [name, of] : finished.streams) {
        const auto then = finished_then.find(name);
        const uint64_t known = std::max(of.passed, finished.all);
        if (of.changes <= (then == finished_then.end() ? known : std::max(known, then->second))) continue;
        if (name != canonical(0)) return Settles::no;
        all = Settles::but_for_the_default_stream;
    }
    return all;
}

bool may_tell(Connection& connection, uint64_t stream) {
    const Finished::Stream* const of = find(connection, canonical(stream));
    return of && !has_mirrors() && has_run(connection, of->call) && done(connection, canonical(stream)) &&
           may_answer(connection);
}

bool may_be_open(Connection& connection, uint64_t stream) {
    std::lock_guard lock(connection.mutex);
    const Finished::Stream* const of = find(connection, stream);
    return of && !of->blocks;
}

void note_open(Connection& connection, uint64_t stream) {
    if (Finished::Stream* const of = find(connection, stream)) of->open = connection.foresight.requests;
}

uint64_t call_before_next(Connection& connection, uint64_t stream) {
    const Finished::Stream* const of = find(connection, stream);
    return of ? call_of_gate(connection, *of) : 0;
}

std::optional<uint64_t> due_now(Connection& connection, uint64_t stream) {
    std::lock_guard lock(connection.mutex);
    Finished::Stream* const of = find(connection, stream);
    if (!of || of->blocks || !done(connection, stream) || !connection.is_there()) return std::nullopt;
    return of->call = ++connection.finished.calls;
}

// --- hooks of the calls of codegen/calls.txt: before a request, and in it, under the mutex ---

std::optional<CUresult> foreseen_cuStreamSynchronize(Connection& connection, CUstream stream) {
    wait_for_calls(connection, call_before(connection, stream));
    if (is_done(connection, stream)) return has_managed() ? waited_here(connection) : CUDA_SUCCESS;
    if (has_managed() || has_mirrors()) return std::nullopt;
    return wait_and_read_ahead(connection, stream_name(connection, stream));
}
std::optional<CUresult> foreseen_cuStreamQuery(Connection& connection, CUstream stream) {
    if (call_before(connection, stream) && connection.alive()) return CUDA_ERROR_NOT_READY;
    if (!is_done(connection, stream)) return std::nullopt;
    return has_managed() ? waited_here(connection) : CUDA_SUCCESS;
}
std::optional<CUresult> foreseen_cuEventSynchronize(Connection& connection, CUevent event) {
    wait_for_calls(connection, call_before(connection, event));
    return is_done(connection, event) ? std::optional(CUDA_SUCCESS) : std::nullopt;
}
std::optional<CUresult> foreseen_cuEventElapsedTime(Connection& connection, float*, CUevent start,
                                                    CUevent end) {
    if (call_before(connection, start) || call_before(connection, end)) return CUDA_ERROR_NOT_READY;
    return std::nullopt;
}
// Devices of a lease do not know of each other: what waits for another one's event is this thread.
// Nothing has to wait for what is done.  The stream's later work comes after the event's host functions, too.
std::optional<CUresult> foreseen_cuStreamWaitEvent(Connection& connection, CUstream stream, CUevent event,
                                                   unsigned flags) {
    if (!may_be_of(connection, event)) return cuEventSynchronize(event);
    const uint64_t of = canonical(stream_name(connection, stream));
    std::lock_guard lock(connection.mutex);
    const Finished::Recording* const found = find_event(connection, event);
    Finished::Stream* const in = find(connection, of);
    if (!found || !in) return std::nullopt;
    const bool is_passed = passed(connection, *found);
    if (!has_run(connection, found->call)) {
        if (in->blocks) {
            gate(connection, of, found->call);
            return std::nullopt;
        }
        in->call = std::max(in->call, found->call);
    }
    if (flags || has_mirrors() || !is_passed) return std::nullopt;
    return connection.alive() ? std::optional(CUDA_SUCCESS) : std::nullopt;
}
// An event that is not known here is asked for, and so must come after the gate.
void gate_unknown_event(Connection& connection, CUevent event, CUstream stream) {
    const uint64_t call = call_before(connection, stream), of = canonical(stream_name(connection, stream));
    std::lock_guard lock(connection.mutex);
    if (call && !find_event(connection, event)) gate(connection, of, call);
}
void gate_event(Connection& connection, uint64_t stream) {
    std::lock_guard lock(connection.mutex);
    const Finished::Stream* const of = find(connection, canonical(stream));
    if (!of) return;
    if (has_run(connection, of->call) && !is_open(connection, *of)) return;
    gate(connection, canonical(stream), call_of_gate(connection, *of));
    // Who has waited for the device finds the event done: it is the next request.
    connection.finished.anywhere = connection.foresight.requests + 1;
}

void noted_cuStreamCreate(Connection& connection, CUstream* stream, unsigned flags) {
    note_made_stream(connection, reinterpret_cast<uint64_t>(*stream), !(flags & CU_STREAM_NON_BLOCKING));
    connection.finished.sure = connection.foresight.requests;
}
void noted_cuStreamCreateWithPriority(Connection& connection, CUstream* stream, unsigned flags, int) {
    noted_cuStreamCreate(connection, stream, flags);
}
// Its work goes on.
void noted_cuStreamDestroy_v2(Connection& connection, CUstream stream) {
    Finished& finished = connection.finished;
    const auto found = finished.streams.find(reinterpret_cast<uint64_t>(stream));
    if (found == finished.streams.end()) return;
    if (!done(connection, found->second)) finished.gone = connection.foresight.requests;
    finished.streams.erase(found), finished.latest = {};
    finished.sure = connection.foresight.requests;
}
// A stream that waits is finished when what it waits for is.
void noted_cuStreamWaitEvent(Connection& connection, CUstream stream, CUevent event, unsigned) {
    constexpr size_t MOST = 64;
    Finished::Stream* const of = find(connection, canonical(stream_name(connection, stream)));
    const Finished::Recording* const found = find_event(connection, event);
    if (!of || (found && !found->number)) return;
    if (found && of->joins.size() < MOST)
        of->joins.push_back({connection.foresight.requests, *found});
    else
        of->other = connection.foresight.requests;
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
    note_recorded(connection, event, canonical(stream_name(connection, stream)));
}
void noted_cuEventRecordWithFlags(Connection& connection, CUevent event, CUstream stream, unsigned) {
    note_recorded(connection, event, canonical(stream_name(connection, stream)));
}

}  // namespace gpukernel::shim
