#include "shim/modules/host_functions.h"

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
// that the worker had no room for stays among them.
constexpr int MOST_REPORTS = 64;

// Receives from the worker which stream has come to which function, over a connection of its own: on the
// program's, an answer might have to wait for that very stream.  That a function has run is told over a
// third one, which no question keeps waiting.
class Caller {
  public:
    bool start(Connection& connection) {
        std::string error;
        reports_ = connection.open_another(error);
        if (reports_) done_ = connection.open_another(error);
        key_ = connection.key(), of_ = &connection;
        if (!done_ || !start_thread([this] { run(); })) return false;
        connection.others[0] = reports_.socket().fd(), connection.others[1] = done_.socket().fd();
        return true;
    }
    uint64_t expect(const HostCall& call) {
        std::lock_guard lock(mutex_);
        waiting_[++numbers_] = {call, 0, 0, 0, false, false, {}};
        ++host_calls_left;
        return numbers_;
    }
    // A report, which no function comes with; 0 where many are to come.
    uint64_t expect_report() {
        std::lock_guard lock(mutex_);
        if (reports_left_ == MOST_REPORTS) return 0;
        waiting_[++numbers_] = {{}, 0, 0, 0, false, true, {}};
        ++reports_left_;
        return numbers_;
    }
    void forget_report(uint64_t number) {
        std::lock_guard lock(mutex_);
        reports_left_ -= static_cast<int>(waiting_.erase(number));
    }
    // A gate for a function that runs in the program.
    uint64_t expect_gate(uint64_t local) {
        const uint64_t number = expect({});
        std::lock_guard lock(mutex_);
        waiting_[number].local = local;
        return number;
    }
    // The request of that gate, in `stream`; `open` where the stream does not wait at it.
    void sent(uint64_t gate, uint64_t stream, uint64_t request, bool open, EarlyQuestion question = {}) {
        std::lock_guard lock(mutex_);
        const auto it = waiting_.find(gate);
        if (it == waiting_.end()) return;
        it->second.stream = stream, it->second.request = request, it->second.open = open;
        it->second.question = std::move(question);
    }
    void forget(uint64_t number) {
        std::lock_guard lock(mutex_);
        host_calls_left -= static_cast<int>(waiting_.erase(number));
    }

  private:
    void run() {
        uint64_t number = 0;
        CUresult status;
        std::string early;
        for (int i = 0; i < AHEAD; ++i)
            if (!ask()) return;
        while (next(number, status, early) && ask()) {
            Gate gate;
            {
                std::lock_guard lock(mutex_);
                auto it = waiting_.find(number);
                if (it == waiting_.end()) return;
                gate = std::move(it->second);
                waiting_.erase(it);
                if (gate.report) --reports_left_;
            }
            if (gate.report) {
                if (status == CUDA_SUCCESS) tell_report(std::move(gate), early);
                continue;
            }
            if (status == CUDA_SUCCESS &&
                gate.request) {  // what the function tells of is known before it runs
                tell_passed(*of_, gate.stream, gate.request - 1);
                tell_function(*of_, {gate.request, gate.stream, std::move(gate.question), early});
            }
            if (gate.call.function || gate.call.callback) {
                perform(gate.call, status);
            } else {  // those before it in its stream have run by now, one after another, in this thread
                wait_for_calls(*of_, gate.local);
                --host_calls_left;
            }
            if (status == CUDA_SUCCESS && gate.request) tell_passed(*of_, gate.stream, gate.request);
            if (gate.open) {  // the worker did not wait for it
                --of_->finished.open;
                continue;
            }
            const std::vector<char> done = wire::frame_of(wire::HostFunctionDoneRequest{key_, number});
            if (!done_.write(done.data(), done.size())) return;
        }
    }
    bool ask() {
        const std::vector<char> question = wire::frame_of(wire::NextHostFunctionRequest{key_});
        return reports_.write(question.data(), question.size());
    }
    bool next(uint64_t& number, CUresult& status, std::string& early) {
        constexpr size_t LEAST = sizeof(wire::AnswerHead) + wire::NextHostFunctionAnswer::HEAD_BYTES;
        constexpr size_t MOST_EARLY = 1 + wire::MOST_EARLY_READS * (1 + wire::MOST_EARLY_BYTES);
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

    struct Gate;
    void tell_report(Gate gate, const std::string& early) {
        tell_passed(*of_, gate.stream, gate.request);
        if (!early.empty()) note_answer(*of_, gate.request);
        tell_function(*of_, {gate.request, gate.stream, std::move(gate.question), early});
    }

    struct Gate {
        HostCall call;   // or none
        uint64_t local;  // and a function that runs in the program; 0: none
        uint64_t stream, request;
        bool open;  // the worker does not wait for it
        bool report;
        EarlyQuestion question;
    };

    wire::Channel reports_, done_;
    Connection* of_ = nullptr;
    uint64_t key_ = 0;
    std::mutex mutex_;
    std::map<uint64_t, Gate> waiting_;
    uint64_t numbers_ = 0;
    int reports_left_ = 0;
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
    const uint64_t number = caller->expect(call);
    CUresult result;
    {
        std::unique_lock lock(connection.mutex);
        EarlyQuestion question = expect_reads(connection, canonical(of));
        const auto* const reads = reinterpret_cast<const char*>(question.reads.data());
        Request request(
            connection,
            wire::HostFunctionRequest{of, number, {reads, question.reads.size() * sizeof(wire::EarlyRead)}},
            std::move(lock));
        caller->sent(number, canonical(of), request.number(), open, std::move(question));
        if (open) note_open(connection, canonical(of)), ++connection.finished.open;
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
    const uint64_t gate = caller->expect_gate(call), request = ++connection.foresight.requests;
    append_request(connection, static_cast<uint16_t>(wire::CustomCall::host_function),
                   [&](wire::Writer& to) { wire::HostFunctionRequest{stream, gate, {}}.write(to); });
    caller->sent(gate, stream, request, false);
    return request;
}

uint64_t expect_report(Connection& connection) {
    Caller* const caller = connection.alive() ? caller_of(connection, true) : nullptr;
    return caller ? caller->expect_report() : 0;
}
void add_report(Connection& connection, uint64_t stream, uint64_t number) {
    const uint64_t request = ++connection.foresight.requests;
    EarlyQuestion question = expect_reads(connection, stream);
    append_request(connection, static_cast<uint16_t>(wire::CustomCall::report), [&](wire::Writer& to) {
        const auto* const reads = reinterpret_cast<const char*>(question.reads.data());
        wire::ReportRequest{stream, number, {reads, question.reads.size() * sizeof(wire::EarlyRead)}}.write(
            to);
    });
    caller_of(connection, false)->sent(number, stream, request, false, std::move(question));
    connection.queued();
}
void forget_report(Connection& connection, uint64_t number) {
    caller_of(connection, false)->forget_report(number);
}

CUresult finish_host_calls(Connection& connection) {
    if (!caller_of(connection, false)) return CUDA_SUCCESS;
    wait_for_all_calls(connection);
    Request request(connection, wire::DriverCall::cuCtxSynchronize);
    return request.send();
}

}  // namespace gpukernel::shim
