#include "shim/modules/host_functions.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>

#include "shim/managed/managed.h"
#include "shim/modules/local_calls.h"
#include "shim/transport/request.h"
#include "shim/transport/threads.h"
#include "wire/handshake.h"

namespace gpukernel::shim {

namespace {
std::atomic<int> host_calls_left{0};

// Questions for the next function that are on their way, so that functions of several streams, which do not
// wait for each other, do not wait for each other's round trips: there are as many in one as there are
// questions, and JAX has three in a step.
constexpr int AHEAD = 64;
// Reports that are to come: each takes a place in its stream, of which a device has a thousand or so.  One
// that an older worker had no room for stays among them.
constexpr int MOST_REPORTS = 64;

// Receives from the worker which stream has come to which function, over a connection of its own: on the
// program's, an answer might have to wait for that very stream.  That a function has run is told over a
// third one, which no question keeps waiting.
//
// A function for which the worker has no room is told, too.  It has its place in its stream here, behind the
// earlier ones: its callback hears of the error there, and nobody waits for it any more.
class Caller {
  public:
    // A function, or a gate, which no function of its own comes with, or a report.
    struct Gate {
        HostCall call{};                   // or none
        uint64_t local = 0;                // and a function that runs in the program before; 0: none
        uint64_t stream = 0, request = 0;  // its request, in this stream
        bool open = false;                 // the worker does not wait for it
        bool report = false;
        EarlyQuestion question{};
        CUresult error = CUDA_SUCCESS;  // that it has, and tells of when those before it are over
    };

    bool start(Connection& connection) {
        std::string error;
        reports_ = connection.open_another(error);
        if (reports_) done_ = connection.open_another(error);
        key_ = connection.key(), of_ = &connection;
        if (!done_ || !start_thread([this] { run(); })) return false;
        connection.others[0] = reports_.socket().fd(), connection.others[1] = done_.socket().fd();
        return true;
    }

    // --- under the connection's mutex: numbers ascend with the requests ---
    uint64_t next_number() { return ++numbers_; }
    uint64_t next_gate() { return wire::GATE | ++gates_; }
    void expect(uint64_t number, Gate gate) {
        std::lock_guard lock(mutex_);
        if (!gate.report) {
            ++host_calls_left;
            if (gate.call) ++of_->finished.given;
            places_[gate.stream].emplace(gate.request, number);
        }
        waiting_.emplace(number, std::move(gate));
    }
    void forget(uint64_t number) {  // a function whose request could not be made
        std::lock_guard lock(mutex_);
        if (const auto it = waiting_.find(number); it != waiting_.end()) {
            --host_calls_left;
            remove(it);
        }
    }

    // A report is to come; false where many are.
    bool expect_report() {
        std::lock_guard lock(mutex_);
        return reports_left_ < MOST_REPORTS && ++reports_left_;
    }
    void forget_report() {
        std::lock_guard lock(mutex_);
        --reports_left_;
    }

    // Waits for functions; the error that one had which there was no room for, and nobody was told of.
    CUresult come_after(const FunctionsBefore& before) {
        std::unique_lock lock(mutex_);
        const auto is_left = [&](uint64_t stream, uint64_t up_to) {
            const auto of = places_.find(stream);
            return of != places_.end() && of->second.begin()->first < up_to;
        };
        const auto are_over = [&] {
            for (const auto& [stream, up_to] : before.places)
                if (is_left(stream, up_to)) return false;
            if (before.all)
                for (const auto& [stream, each] : places_)
                    if (is_left(stream, before.number)) return false;
            return true;
        };
        if (!before.asks) changed_.wait(lock, [&] { return over_ || are_over(); });
        if (!are_over()) return over_ ? GONE : CUDA_ERROR_NOT_READY;
        for (const auto& [stream, refusal] : refusals_) {
            const auto place = before.places.find(stream);
            const uint64_t up_to = before.all                     ? before.number
                                   : place == before.places.end() ? 0
                                                                  : place->second;
            if (refusal.first < up_to && refusal.first > before.told) return refusal.second;
        }
        return CUDA_SUCCESS;
    }

  private:
    using Waiting = std::map<uint64_t, Gate>;

    void run() {
        uint64_t number = 0;
        CUresult status;
        std::string early;
        bool asked = true;
        for (int i = 0; i < AHEAD && asked; ++i) asked = ask();
        while (asked && next(number, status, early) && ask() && come(number, status, early)) {
        }
        std::lock_guard lock(mutex_);
        over_ = true;
        changed_.notify_all();
    }
    // The stream has come to a place, or the worker has no room for it; false where it makes no sense.
    bool come(uint64_t number, CUresult status, const std::string& early) {
        std::unique_lock lock(mutex_);
        const auto it = waiting_.find(number);
        if (it == waiting_.end()) return false;
        const uint64_t stream = it->second.stream;
        if (it->second.report) {
            Gate gate = std::move(it->second);
            waiting_.erase(it);
            --reports_left_;
            lock.unlock();
            if (status == CUDA_SUCCESS) tell_report(std::move(gate), early);
            return true;
        }
        it->second.error = status;
        // An older worker may have had no room for those before it.
        if (status != CUDA_SUCCESS && of_->tells_of_refusals && first_in(stream) != it) return true;
        for (auto next = it;;) {
            if (!pass(lock, next, early)) return false;
            next = first_in(stream);
            if (next == waiting_.end() || next->second.error == CUDA_SUCCESS) return true;
        }
    }
    Waiting::iterator first_in(uint64_t stream) {
        const auto of = places_.find(stream);
        return of == places_.end() ? waiting_.end() : waiting_.find(of->second.begin()->second);
    }
    // Runs a function, or waits for that of a gate, and has later work of its stream go on.  It stays among
    // those that wait meanwhile.
    bool pass(std::unique_lock<std::mutex>& lock, Waiting::iterator it, const std::string& early) {
        const uint64_t number = it->first;
        Gate gate = std::move(it->second);  // which keeps its place
        lock.unlock();
        const CUresult status = gate.error;
        if (status == CUDA_SUCCESS) {  // what the function tells of is known before it runs
            tell_passed(*of_, gate.stream, gate.request - 1);
            tell_function(*of_, {gate.request, gate.stream, std::move(gate.question), early});
        }
        // Those before it in its stream that the worker was given have run by now, one after another, in this
        // thread.
        wait_for_calls(*of_, gate.local);
        if (gate.call)
            perform(gate.call, status);
        else
            --host_calls_left;
        if (status == CUDA_SUCCESS) tell_passed(*of_, gate.stream, gate.request);
        lock.lock();
        if (status != CUDA_SUCCESS) {
            refusals_[gate.stream] = {gate.request, status};
            of_->finished.refused = std::max(of_->finished.refused.load(), gate.request);
        }
        remove(it);
        if (gate.open) return true;  // the worker did not wait for it
        lock.unlock();
        const std::vector<char> done = wire::frame_of(wire::HostFunctionDoneRequest{key_, number});
        const bool sent = done_.write(done.data(), done.size());
        lock.lock();
        return sent;
    }
    void remove(Waiting::iterator it) {  // under the mutex
        const Gate& gate = it->second;
        if (gate.call) --of_->finished.given;
        const auto of = places_.find(gate.stream);
        of->second.erase(gate.request);
        if (of->second.empty()) places_.erase(of);
        waiting_.erase(it);
        changed_.notify_all();
    }
    bool ask() {
        const std::vector<char> question = wire::frame_of(wire::NextHostFunctionRequest{key_});
        return reports_.write(question.data(), question.size());
    }
    bool next(uint64_t& number, CUresult& status, std::string& early) {
        constexpr size_t LEAST = sizeof(wire::AnswerHead) + wire::NextHostFunctionAnswer::HEAD_BYTES;
        constexpr size_t MOST_EARLY = 1 + wire::MOST_EARLY_READS + wire::MOST_EARLY_BYTES;
        struct {
            wire::FrameHeader header;
            wire::AnswerHead answer;
            char outputs[wire::NextHostFunctionAnswer::HEAD_BYTES];
        } frame;
        if (!reports_.read(&frame, sizeof frame) || frame.header.length < LEAST ||
            frame.header.length > LEAST + MOST_EARLY || frame.answer.result != CUDA_SUCCESS)
            return false;
        early.resize(frame.header.length - LEAST);
        if (!reports_.read(early.data(), early.size())) return false;
        wire::Reader in(frame.outputs, sizeof frame.outputs);
        const auto outputs = wire::NextHostFunctionAnswer::read(in);
        number = outputs.number, status = static_cast<CUresult>(outputs.status);
        return true;
    }
    void tell_report(Gate gate, const std::string& early) {
        tell_passed(*of_, gate.stream, gate.request);
        if (!early.empty()) note_answer(*of_, gate.request);
        tell_function(*of_, {gate.request, gate.stream, std::move(gate.question), early});
    }

    wire::Channel reports_, done_;
    Connection* of_ = nullptr;
    uint64_t key_ = 0;
    uint64_t numbers_ = 0, gates_ = 0;

    std::mutex mutex_;  // guards everything below
    std::condition_variable changed_;
    Waiting waiting_;  // by number
    // Of functions and gates: their numbers, by stream and request.
    std::unordered_map<uint64_t, std::map<uint64_t, uint64_t>> places_;
    // The newest of each stream that had an error: its request, and the error.
    std::unordered_map<uint64_t, std::pair<uint64_t, CUresult>> refusals_;
    int reports_left_ = 0;
    bool over_ = false;  // the worker is gone, or makes no sense
};

Caller* caller_of(Connection& connection, bool make) {
    static std::mutex mutex;
    static auto* const callers = new std::map<Connection*, std::unique_ptr<Caller>>;  // threads are in them
    std::lock_guard lock(mutex);
    std::unique_ptr<Caller>& caller = (*callers)[&connection];
    if (!caller && make) {
        auto fresh = std::make_unique<Caller>();
        if (!fresh->start(connection)) return nullptr;
        caller = std::move(fresh);
    }
    return caller.get();
}

// Calls the function in the calling thread once earlier work is done.  Used where there is managed memory: a
// function that accessed a page would wait for the device, and the device for the function.
CUresult call_now(const HostCall& call) {
    const CUresult error = cuStreamSynchronize(call.stream);
    if (call.callback && error != GONE)
        call.callback(call.stream, error, call.data);
    else if (!call.callback && error == CUDA_SUCCESS)
        call.function(call.data);
    return error;
}
}  // namespace

GPUKERNEL_STATIC_THREAD_LOCAL bool calling_host = false;

bool host_calls_are_left() { return host_calls_left.load() != 0; }

void perform(const HostCall& call, CUresult status) {
    calling_host = true;
    if (call.callback)
        call.callback(call.stream, status, call.data);
    else if (status == CUDA_SUCCESS)
        call.function(call.data);
    calling_host = false;
    --host_calls_left;
}

CUresult call_in_order(Connection& connection, const HostCall& call) {
    if (has_managed()) return call_now(call);
    if (!connection.alive()) return GONE;
    Caller* const caller = caller_of(connection, true);
    if (!caller) return connection.alive() ? CUDA_ERROR_OUT_OF_MEMORY : GONE;
    const uint64_t of = stream_name(connection, call.stream);
    if (can_run_here(connection))
        if (const auto number = due_now(connection, canonical(of))) {
            ++host_calls_left;
            run_here(connection, call, *number);
            return CUDA_SUCCESS;
        }
    const bool open = may_be_open(connection, canonical(of));
    uint64_t number;
    CUresult result;
    {
        std::unique_lock lock(connection.mutex);
        number = caller->next_number();
        EarlyQuestion question = expect_reads(connection, canonical(of));
        const auto* const reads = reinterpret_cast<const char*>(question.reads.data());
        Request request(
            connection,
            wire::HostFunctionRequest{of, number, {reads, question.reads.size() * sizeof(wire::EarlyRead)}},
            std::move(lock));
        if (open) note_open(connection, canonical(of));
        caller->expect(number, {.call = call,
                                .local = call_before_next(connection, canonical(of)),
                                .stream = canonical(of),
                                .request = request.number(),
                                .open = open,
                                .question = std::move(question)});
        result = request.queue();
        // In order, before the stream comes there: the worker reports it and goes on.
        if (result == CUDA_SUCCESS && open)
            append_request(
                connection, static_cast<uint16_t>(wire::CustomCall::host_function_done),
                [&](wire::Writer& to) { wire::HostFunctionDoneRequest{connection.key(), number}.write(to); });
    }
    if (result != CUDA_SUCCESS) caller->forget(number);
    return result;
}

uint64_t add_gate(Connection& connection, uint64_t stream, uint64_t call) {
    Caller* const caller = caller_of(connection, false);  // which is there before a function runs here
    const uint64_t number = caller->next_gate(), request = ++connection.foresight.requests;
    caller->expect(number, {.local = call, .stream = stream, .request = request});
    append_request(connection, static_cast<uint16_t>(wire::CustomCall::host_function),
                   [&](wire::Writer& to) { wire::HostFunctionRequest{stream, number, {}}.write(to); });
    return request;
}

bool expect_report(Connection& connection) {
    Caller* const caller = connection.alive() ? caller_of(connection, true) : nullptr;
    return caller && caller->expect_report();
}
void add_report(Connection& connection, uint64_t stream) {
    Caller* const caller = caller_of(connection, false);
    const uint64_t number = caller->next_number(), request = ++connection.foresight.requests;
    EarlyQuestion question = expect_reads(connection, stream);
    append_request(connection, static_cast<uint16_t>(wire::CustomCall::report), [&](wire::Writer& to) {
        const auto* const reads = reinterpret_cast<const char*>(question.reads.data());
        wire::ReportRequest{stream, number, {reads, question.reads.size() * sizeof(wire::EarlyRead)}}.write(
            to);
    });
    caller->expect(number,
                   {.stream = stream, .request = request, .report = true, .question = std::move(question)});
    connection.queued();
}
void forget_report(Connection& connection) { caller_of(connection, false)->forget_report(); }

FunctionsBefore functions_before(Connection& connection, const Request& request) {
    using wire::CustomCall;
    using wire::DriverCall;
    FunctionsBefore before;
    const Finished& finished = connection.finished;
    before.number = request.number(), before.told = finished.told;
    const auto word = [&](size_t which) {
        uint64_t value;
        std::memcpy(&value, request.body() + which * sizeof value, sizeof value);
        return value;
    };
    const auto in_stream = [&](uint64_t name) {
        const uint64_t stream = canonical(name);
        if (const Finished::Stream* const of = find_stream(connection, stream))
            before.call = std::max(of->call, of->gate.call);
        before.places = finished_with(connection, stream, before.number, before.call);
        before.any = true;
    };
    const auto with_event = [&](uint64_t name) {
        const Finished::Recording* const found = find_event(connection, reinterpret_cast<CUevent>(name));
        if (!found) return;
        before.call = found->call, before.any = true;
        if (found->number)
            before.places = finished_with(connection, found->stream, found->number, before.call);
    };
    if (holds_managed()) return before;  // there are no functions then, and who waits keeps others waiting
    switch (request.call()) {
        case static_cast<uint16_t>(DriverCall::cuCtxSynchronize):
            before.call = finished.calls, before.any = before.all = true;
            break;
        case static_cast<uint16_t>(DriverCall::cuStreamQuery):
            before.asks = true;
            in_stream(word(0));
            break;
        case static_cast<uint16_t>(DriverCall::cuStreamSynchronize):
        case static_cast<uint16_t>(CustomCall::pitched_to_host):
            in_stream(word(0));
            break;
        case static_cast<uint16_t>(CustomCall::copy_to_host):
            in_stream(word(1));
            break;
        case static_cast<uint16_t>(DriverCall::cuEventQuery):
            before.asks = true;
            with_event(word(0));
            break;
        case static_cast<uint16_t>(DriverCall::cuEventSynchronize):
            with_event(word(0));
            break;
        case static_cast<uint16_t>(DriverCall::cuEventElapsedTime):
            before.asks = true;
            with_event(word(1));
            break;
        default:
            break;
    }
    return before;
}

CUresult come_after(Connection& connection, const FunctionsBefore& before, CUresult result) {
    if (result != CUDA_SUCCESS) return result;
    if (before.asks && !has_run(connection, before.call)) return CUDA_ERROR_NOT_READY;
    wait_for_calls(connection, before.call);
    // Of an older one nobody knows which functions will never run.
    Caller* const caller = connection.tells_of_refusals ? caller_of(connection, false) : nullptr;
    return caller ? caller->come_after(before) : result;
}

CUresult finish_host_calls(Connection& connection) {
    if (!caller_of(connection, false)) return CUDA_SUCCESS;
    wait_for_all_calls(connection);
    Request request(connection, wire::DriverCall::cuCtxSynchronize);
    return request.send();
}

}  // namespace gpukernel::shim
