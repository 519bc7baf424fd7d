#include "worker/session/session.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>

namespace gpukernel::worker {

using wire::AnswerHead;
using wire::CustomCall;
using wire::FrameHeader;

namespace {
int output_pipe = -1;
constexpr int MOST_THREADS = 64 + 1;                // of one connection, besides its own; one reads ahead
constexpr int MOST_RESTING = 2;                     // threads without a request that are kept
constexpr int MOST_FREES = 8;                       // tries to free an allocation
constexpr size_t SMALL = 64 << 10;                  // bytes of a request or answer that count for nothing
constexpr size_t MOST_KEPT = 2 * wire::COPY_PIECE;  // bytes of a buffer that its thread keeps

// How long an allocation waits for memory that was freed in a stream: for the device alone, and where streams
// may wait for the host, which may be the one that waits here.
constexpr std::chrono::seconds PATIENCE(60), PATIENCE_WITH_HOST(1);
constexpr std::chrono::microseconds FIRST_PAUSE(20), LAST_PAUSE(500);

// Starts a detached thread with a small stack; false where the system gives no more.
bool start_thread(std::function<void()> work) {
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setstacksize(&attributes, 1 << 20);
    ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    auto* argument = new std::function<void()>(std::move(work));
    pthread_t thread;
    const int failed = ::pthread_create(
        &thread, &attributes,
        [](void* work) -> void* {
            std::unique_ptr<std::function<void()>> mine(static_cast<std::function<void()>*>(work));
            (*mine)();
            return nullptr;
        },
        argument);
    ::pthread_attr_destroy(&attributes);
    if (failed) delete argument;
    return !failed;
}
}  // namespace

bool capture_output() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    ::fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
    ::dup2(ends[1], STDOUT_FILENO);
    ::close(ends[1]);
    output_pipe = ends[0];
    return true;
}

std::string printed_text() {
    std::string text;
    char buffer[4096];
    for (ssize_t got; output_pipe >= 0 && (got = ::read(output_pipe, buffer, sizeof buffer)) > 0;)
        text.append(buffer, got);
    return text;
}

bool poisons(CUresult code) {
    return code == CUDA_ERROR_ILLEGAL_ADDRESS || code == CUDA_ERROR_MISALIGNED_ADDRESS ||
           code == CUDA_ERROR_LAUNCH_FAILED || code == CUDA_ERROR_ASSERT ||
           code == CUDA_ERROR_ILLEGAL_INSTRUCTION || code == CUDA_ERROR_INVALID_ADDRESS_SPACE ||
           code == CUDA_ERROR_INVALID_PC || code == CUDA_ERROR_HARDWARE_STACK_ERROR ||
           code == CUDA_ERROR_LAUNCH_TIMEOUT || code == CUDA_ERROR_CONTEXT_IS_DESTROYED ||
           code == CUDA_ERROR_ECC_UNCORRECTABLE;
}

void Session::follow(std::shared_ptr<HostFunctions> functions) {
    std::lock_guard lock(mutex_);
    if (left_) functions->end();
    followed_host_functions_ = std::move(functions);
}

void Session::left() {
    {
        std::lock_guard lock(mutex_);
        if (!left_.exchange(true)) ++lease_.leaving;
        channel_.rouse();
        host_functions_->end();
        if (followed_host_functions_) followed_host_functions_->end();
    }
    cancel_work();
}

void Session::release_everything() {
    const bool cancels = cuda().end_program;
    {
        std::lock_guard allocating(lease_.allocation_mutex);
        lease_.freed.forget(this);
        if (cancels) lease_.freed.record();  // while their streams exist
    }
    // Another thread may wait for what is going to be destroyed: where it does, that one destroys it.
    const auto destroy_stream = [this](CUstream stream) {
        destroy(stream, [&cuda = cuda(), stream] { return cuda.cuStreamDestroy_v2(stream); });
    };
    if (own_default_) destroy_stream(std::exchange(own_default_, nullptr));
    // What was cancelled waits for nothing of other programs.
    if (poisons(cuda().cuCtxSynchronize())) lease_.poisoned = true;  // an error that no call waited for
    if (!cancels || lease_.connections == 1 || is_done(nullptr)) lease_.finished();
    std::lock_guard allocating(lease_.allocation_mutex);
    views.destroy(cuda()), library_objects.clear();
    std::unordered_map<uint64_t, OwnedHandle> handles;
    {
        std::lock_guard lock(handles_mutex_);
        handles.swap(handles_), names_.clear();
    }
    for (auto& [name, entry] : handles) {
        switch (entry.kind) {
            case Kind::module:
                if (entry.parent) break;  // a library's goes with that
                lease_.refund_module(entry.handle);
                cuda().cuModuleUnload(static_cast<CUmodule>(entry.handle));
                break;
            case Kind::library:
                lease_.refund_module(entry.handle);
                cuda().cuLibraryUnload(static_cast<CUlibrary>(entry.handle));
                break;
            case Kind::stream:
                destroy_stream(static_cast<CUstream>(entry.handle));
                break;
            case Kind::event:
                destroy(entry.handle, [&lease = lease_, event = static_cast<CUevent>(entry.handle)] {
                    return lease.shared_events.destroy(lease.cuda, event);
                });
                break;
            case Kind::link:
                cuda().cuLinkDestroy(static_cast<CUlinkState>(entry.handle));
                break;
            case Kind::array:
                if (entry.parent) break;  // a level goes with its mipmapped array
                lease_.refund_module(entry.handle);
                cuda().cuArrayDestroy(static_cast<CUarray>(entry.handle));
                break;
            case Kind::mipmap:
                lease_.refund_module(entry.handle);
                cuda().cuMipmappedArrayDestroy(static_cast<CUmipmappedArray>(entry.handle));
                break;
            default:
                break;  // functions and references go with their modules
        }
    }
    handles.clear(), linked_.clear();
    if (lease_.connections == 1) {  // no other program: the next one finds the context as it was
        lease_.reset_limits();
        lease_.staging_buffers.clear(), lease_.early_reads.clear();
        printed_text();  // is nobody's any more
        lease_.heard_out = lease_.launches.load();
    }
    virtual_memory_.end();
    if (cancels)
        lease_.freed.settle();  // what is behind others' work in a default stream stays charged until then
    else
        lease_.freed.settle(this);
    lease_.free_all(this, [this](CUdeviceptr address) { return free(address); });
    if (std::exchange(waits_for_host_, false)) --lease_.waits_for_host;
}

Session::~Session() {
    host_functions_->end();
    if (followed_host_functions_)
        followed_host_functions_
            ->end();  // who would have run them is gone, whether or not the server has seen it
    if (is_program_) {
        cancel_work();
        release_everything();
        lease_.leave(this);
    }
    if (left_) --lease_.leaving, lease_.freed_some();
}

// --- the threads ---

thread_local Session::RequestContext* Session::context_ = nullptr;

void Session::serve() {
    {
        std::lock_guard lock(mutex_);
        called_ = 1;
    }
    run_thread(true);
    std::unique_lock lock(mutex_);
    gone_.wait(lock, [&] { return more_ == 0; });
}

// Serves requests whenever this is the reading thread.
void Session::run_thread(bool stays) {
    RequestContext context;
    context.charge = HostCharge(lease_.host_memory);
    context_ = &context;
    try {
        cuda().cuCtxSetCurrent(lease_.context);
        if (cuda().work_for) cuda().work_for(program_number_);
        while (wait_for_reading(context, stays)) read_requests(context);
    } catch (const std::exception&) {
        // Out of host memory for what a program sent: its connection ends, the worker does not.
        end();
    }
    context_ = nullptr;
}

void Session::read_requests(RequestContext& context) {
    while (context.reads) {
        // What a program that is gone has still sent is not begun.
        if ((left_ && is_program_) || !channel_.read(&context.request, sizeof context.request) ||
            !serve_one(context)) {
            if (context.reads) end();
            return;
        }
        // Images are rare: their memory is not kept.
        if (context.body.capacity() > MOST_KEPT || context.out.capacity() > MOST_KEPT)
            release_buffers(context);
        else if (const size_t kept = context.body.capacity() + context.out.capacity();
                 kept > context.charge.bytes() + SMALL) {
            context.charge.note(kept);
            if (lease_.host_memory.used() > lease_.host_memory.limit()) release_buffers(context);
        }
    }
}

void Session::release_buffers(RequestContext& context) {
    context.body = {}, context.out = {};
    context.charge.shrink(0);
}

// Waits until this thread shall take over the reading; false where it shall end.
bool Session::wait_for_reading(RequestContext& context, bool stays) {
    std::unique_lock lock(mutex_);
    if (resting_ >= MOST_RESTING && called_ == 0 && !stays) return false;
    release_buffers(context);
    ++resting_;
    call_.wait(lock, [&] { return over_ || called_ > 0; });
    --resting_;
    if (over_) return false;
    --called_;
    context.reads = true;
    return true;
}

void Session::end() {
    std::lock_guard lock(mutex_);
    over_ = true;
    channel_.shut();
    call_.notify_all();
}

void Session::serve_while_waiting(int poll, uint64_t number) {
    std::unique_lock lock(mutex_);
    if (serves_while_waiting_) return;
    epoll_event nothing{EPOLLONESHOT, {.u64 = number}};
    if (::epoll_ctl(poll, EPOLL_CTL_ADD, channel_.socket().fd(), &nothing) != 0) return;
    serves_while_waiting_ = true;
    poll_ = poll, number_ = number;
    if (waiting_) hand_over_reading(lock);  // the thread that asked for it sends a request now
}

void Session::watch_socket() {  // once, until something can be read
    epoll_event event{EPOLLIN | EPOLLONESHOT, {.u64 = number_}};
    watched_ = ::epoll_ctl(poll_, EPOLL_CTL_MOD, channel_.socket().fd(), &event) == 0;
}

void Session::resume_reading() {
    std::unique_lock lock(mutex_);
    if (!waiting_ || !serves_while_waiting_) return;
    if (channel_.expect())
        hand_over_reading(lock);
    else
        watch_socket();
}

// Lets another thread read.  Where there are too many already, the one that waits reads on when its wait is
// over.
void Session::hand_over_reading(std::unique_lock<std::mutex>&) {
    if (resting_ > called_) {
        ++called_;
        call_.notify_one();
    } else if (more_ < MOST_THREADS && lease_.one_more_thread()) {
        auto run = [this] {
            run_thread(false);
            lease_.one_thread_less();
            std::lock_guard lock(mutex_);
            if (--more_ == 0) gone_.notify_all();
        };
        if (!start_thread(run)) {
            lease_.one_thread_less();
            return;
        }
        ++more_, ++called_;
    } else {
        return;
    }
    waiting_ = nullptr;
}

void Session::begin_wait() {
    std::unique_lock lock(mutex_);
    if (!context_->reads) return;
    waiting_ = context_;
    if (!serves_while_waiting_) return;
    watch_socket();
    if (channel_.expect()) hand_over_reading(lock);  // the socket does not report what is in memory already
}

void Session::end_wait() {
    std::lock_guard lock(mutex_);
    if (context_->reads && waiting_ != context_) context_->reads = false;
    if (!context_->reads) return;
    waiting_ = nullptr;
    if (std::exchange(watched_, false)) {
        epoll_event nothing{EPOLLONESHOT, {.u64 = number_}};
        ::epoll_ctl(poll_, EPOLL_CTL_MOD, channel_.socket().fd(), &nothing);
    }
}

// Destroys a stream or event after the last use, where it was to be destroyed meanwhile.
void Session::release(const void* used) {
    std::function<CUresult()> destroy;
    {
        std::lock_guard lock(mutex_);
        if (auto it = used_.find(used); --it->second.count == 0) {
            destroy = std::move(it->second.destroy);
            used_.erase(it);
        }
    }
    if (destroy) destroy();
}

// Querying a stream returns an error once, so it is kept for the program.
bool Session::is_done(CUstream stream) {
    const CUresult result = cuda().cuStreamQuery(stream);
    if (result == CUDA_ERROR_NOT_READY) return false;
    keep(result);
    return true;
}

CUresult Session::wait_for(CUstream stream) {
    const uint64_t flushed = flush_freed(stream);
    auto synchronize = [&] { return cuda().cuStreamSynchronize(stream); };
    // With several threads, to hand over the reading costs two system calls.
    const CUresult result =
        serves_while_waiting_ && is_done(stream) ? synchronize() : wait(synchronize, stream);
    lease_.finished();
    settle_freed(flushed, stream, result);
    return result;
}

CUresult Session::wait_for_all() {
    const uint64_t flushed = flush_freed(std::nullopt);
    const CUresult result = wait([&] { return cuda().cuCtxSynchronize(); });
    lease_.finished();
    settle_freed(flushed, std::nullopt, result);
    return result;
}

// --- memory ---

// Once the host waits for a stream, what was freed in it goes back to the device, as from CUDA's own pools.
// Returns how many batches there were; 0 where there is nothing to refund after the wait.
uint64_t Session::flush_freed(std::optional<CUstream> stream) {
    FreedBlocks& freed = lease_.freed;
    if (!freed.any()) return 0;
    std::unique_lock allocating(lease_.allocation_mutex, std::try_to_lock);
    if (!allocating) return 0;
    stream ? freed.flush(*stream) : freed.flush();
    return freed.flushed();
}

void Session::settle_freed(uint64_t flushed, std::optional<CUstream> stream, CUresult waited) {
    if (!flushed || waited != CUDA_SUCCESS) return;
    std::lock_guard allocating(lease_.allocation_mutex);
    lease_.freed.synchronized(flushed, stream);
}

CUresult Session::reserve(uint64_t bytes) {
    if (bytes > lease_.memory_limit()) return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint64_t seen = lease_.releases(); !lease_.reserve(bytes); seen = lease_.releases())
        if (!wait_for_memory(seen)) return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

bool Session::wait_for_memory(uint64_t seen) {
    FreedBlocks& freed = lease_.freed;
    auto settle = [&] {
        if (!freed.any()) return false;
        std::lock_guard allocating(lease_.allocation_mutex);
        freed.flush();
        freed.settle();
        return freed.pending() > 0;
    };
    settle();
    if (lease_.releases() != seen) return true;
    const auto patience = lease_.waits_for_host ? PATIENCE_WITH_HOST : PATIENCE;
    const auto end = Clock::now() + patience;
    bool more = false;
    const auto until_some = [&] {
        for (auto pause = FIRST_PAUSE;; pause = std::min(2 * pause, LAST_PAUSE)) {
            if ((more = lease_.wait_for_release(seen, pause))) break;
            const bool pending = settle();
            if ((more = lease_.releases() != seen)) break;
            if (!lease_.is_releasing() && ((!pending && !lease_.leaving) || Clock::now() > end)) break;
        }
        return CUDA_SUCCESS;
    };
    context_->queued ? until_some() : wait(until_some);
    return more;
}

// The driver may answer with the error of earlier work in place of freeing; it tells each once.
bool Session::free(CUdeviceptr address) {
    const auto pause = lease_.early_reads.pause();
    for (int tries = 0; tries < MOST_FREES; ++tries) {
        const CUresult result = cuda().cuMemFree_v2(address);
        if (result == CUDA_SUCCESS || poisons(result)) return true;  // or the worker begins anew
        keep(result);
    }
    return false;
}

// --- requests ---

bool Session::serve_one(RequestContext& context) {
    const FrameHeader& header = context.request;
    const ServedCall* call = custom_call(header.call);
    if (!call) call = driver_call(header.call);
    if (!call) return false;
    const auto custom = static_cast<CustomCall>(header.call);
    if (custom == CustomCall::copy_to_device) return serve_copy_to_device(context);
    if (custom == CustomCall::copy_to_host) return serve_copy_to_host(context);
    if (custom == CustomCall::share_memory) return serve_share_memory(context);
    if (header.length > wire::max_request(header.call)) return false;
    bool fits = true;
    if (!read_body(context, fits)) return false;
    context.question = call->question, context.launches = lease_.launches;
    context.queued = call->asynchronous, context.not_loaded = CUDA_SUCCESS;
    if (!context.question) called(launches(custom));
    Reader in(context.body.data(), header.length);
    context.out.assign(ANSWER_BYTES, 0);
    Writer out(context.out);
    CUresult result = fits ? call->serve(*this, in, out) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_ERROR_INVALID_HANDLE && context.not_loaded != CUDA_SUCCESS)
        result = context.not_loaded;
    if (!call->asynchronous) return answer(context, result);
    keep(result);
    return true;
}

// Reads a request's body, or past it where `fits` says that it is beyond the limit of host memory.  False
// where the connection has ended.
bool Session::read_body(RequestContext& context, bool& fits) {
    const size_t length = context.request.length;
    // Grow only as bytes really come: a false length costs no memory.
    context.body.clear();
    for (size_t got = 0, piece; got < length; got += piece) {
        piece = std::min(length - got, std::max<size_t>(got, SMALL));
        // A vector takes twice what it had.
        if (got + piece > SMALL && fits && !context.charge.grow(2 * (got + piece) + context.out.capacity()))
            fits = false, context.body.resize(SMALL);
        if (!fits) piece = std::min(piece, SMALL);
        if (fits) context.body.resize(got + piece);
        if (!channel_.read(context.body.data() + (fits ? got : 0), piece)) return false;
    }
    context.body.push_back(0);  // ends an image's text
    return true;
}

// Tells a program once why something was refused, although the device has memory left.
std::string Session::host_memory_sentence() {
    if (told_of_host_memory_.exchange(true)) return {};
    return "gpukernel: what this slice's programs keep on the GPU server beside the device's memory "
           "(modules, "
           "linker inputs, streams, events, large local memory, requests) has reached the limit of " +
           std::to_string(lease_.host_memory.limit() >> 20) +
           " MiB; end what is not needed, or ask the administrator to raise --host-memory\n";
}

void Session::called(bool launch) {
    if (!std::exchange(is_program_, true)) {
        lease_.enter(this);
        if (program_) *program_ = true;
    }
    lease_.call(launch);
}

void Session::keep(CUresult result) {
    if (poisons(result)) lease_.poisoned = true;
    CUresult none = CUDA_SUCCESS;
    kept_.compare_exchange_strong(none, result);
}

bool Session::has_to_tell() const {
    pollfd output{output_pipe, POLLIN, 0};
    return kept_ != CUDA_SUCCESS || lease_.stray_error != CUDA_SUCCESS || memory_checks.has_sentence() ||
           (output_pipe >= 0 && ::poll(&output, 1, 0) != 0);
}

bool Session::answer(RequestContext& context, CUresult result, const void* bulk, size_t size) {
    // A kept error is returned once, but not in place of CUDA_ERROR_NOT_READY.
    if (const CUresult kept = result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : kept_.exchange(CUDA_SUCCESS);
        result == CUDA_SUCCESS)
        result = kept;
    if (!context.question && result == CUDA_SUCCESS &&
        lease_.stray_error.load(std::memory_order_relaxed) != CUDA_SUCCESS)
        result = lease_.stray_error.exchange(CUDA_SUCCESS);
    if (poisons(result)) lease_.poisoned = true;
    if (result != CUDA_SUCCESS) size = 0;
    std::lock_guard lock(writing_);
    // Printed text is for programs, and only new launches can have printed any.
    const bool silent = context.question || lease_.heard_out == lease_.launches;
    std::string text = context.question ? std::string() : memory_checks.sentence();
    if (!silent) text += printed_text();
    if (lease_.host_memory.refusals() != refusals_before_ && !context.question && !told_of_host_memory_)
        text += host_memory_sentence();
    if (context.request.call == static_cast<uint16_t>(wire::DriverCall::cuCtxSynchronize) &&
        result == CUDA_SUCCESS)
        lease_.heard_out = context.launches;
    std::vector<char>& out = context.out;
    if (!text.empty()) out.insert(out.begin() + ANSWER_BYTES, text.begin(), text.end());
    const FrameHeader header{static_cast<uint32_t>(out.size() - sizeof(FrameHeader) + size),
                             context.request.call, context.request.number};
    const AnswerHead head{static_cast<uint32_t>(result), static_cast<uint32_t>(text.size())};
    std::memcpy(out.data(), &header, sizeof header);
    std::memcpy(out.data() + sizeof header, &head, sizeof head);
    return channel_.write(out.data(), out.size(), bulk, size);
}

}  // namespace gpukernel::worker
