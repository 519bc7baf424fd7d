#include "session.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>

namespace gpukernel::worker {

using wire::FrameHeader;
using wire::Special;

namespace {
int output_pipe = -1;
constexpr int MOST_THREADS = 64;  // of one connection, beside its own
constexpr int MOST_RESTING = 2;

// Small, detached, and without signals of its own; false where there can be no more.
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

void Session::hear_of(std::shared_ptr<HostFunctions> functions) {
    std::lock_guard lock(mutex_);
    if (left_) functions->end();
    hears_of_ = std::move(functions);
}

void Session::left() {
    std::lock_guard lock(mutex_);
    left_ = true;
    channel_.rouse();
    host_functions_->end();
    if (hears_of_) hears_of_->end();
}

void Session::end_everything() {
    if (own_default_) cuda().cuStreamDestroy_v2(own_default_), own_default_ = nullptr;
    if (poisons(cuda().cuCtxSynchronize())) lease_.poisoned = true;  // a fault that nobody waited for
    lease_.finished();
    std::lock_guard taking(lease_.taking);
    views.destroy(cuda());
    for (auto& [name, entry] : handles_) {
        switch (entry.kind) {
            case Kind::module:
                lease_.let_go(entry.handle);
                cuda().cuModuleUnload(static_cast<CUmodule>(entry.handle));
                break;
            case Kind::library:
                lease_.let_go(entry.handle);
                cuda().cuLibraryUnload(static_cast<CUlibrary>(entry.handle));
                break;
            case Kind::stream:
                cuda().cuStreamDestroy_v2(static_cast<CUstream>(entry.handle));
                break;
            case Kind::event:
                cuda().cuEventDestroy_v2(static_cast<CUevent>(entry.handle));
                break;
            case Kind::link:
                cuda().cuLinkDestroy(static_cast<CUlinkState>(entry.handle));
                break;
            case Kind::array:
                if (entry.parent) break;  // a level goes with its mipmapped array
                lease_.let_go(entry.handle);
                cuda().cuArrayDestroy(static_cast<CUarray>(entry.handle));
                break;
            case Kind::mipmap:
                lease_.let_go(entry.handle);
                cuda().cuMipmappedArrayDestroy(static_cast<CUmipmappedArray>(entry.handle));
                break;
            default:
                break;  // functions and references go with their modules
        }
    }
    handles_.clear(), names_.clear(), linked_.clear();
    if (lease_.connections == 1) {  // the context is nobody's now: the next program finds it as it was
        for (auto [limit, value] : lease_.usual_limits)
            if (cuda().cuCtxSetLimit(limit, value) == CUDA_SUCCESS) lease_.set_aside(limit, 0);
        lease_.usual_limits.clear();
        lease_.stages.clear();
    }
    virtual_memory_.end();
    lease_.forget(this, [this](CUdeviceptr address) { cuda().cuMemFree_v2(address); });
}

Session::~Session() {
    host_functions_->end();
    if (hears_of_)
        hears_of_->end();  // who would have run them is gone, whether or not the server has seen it
    if (!is_program_) return;
    end_everything();
    lease_.leave(this);
}

bool Session::find(uint64_t name, Kind kind, void*& handle) {
    if (kind == Kind::stream && name <= reinterpret_cast<uintptr_t>(CU_STREAM_PER_THREAD)) {
        handle = reinterpret_cast<void*>(name);  // the default streams
        if (handle != CU_STREAM_PER_THREAD) return true;
        // The program's thread, not the one that happens to serve it.
        if (!own_default_ && cuda().cuStreamCreate(&own_default_, CU_STREAM_DEFAULT) != CUDA_SUCCESS)
            return false;
        handle = own_default_;
        return true;
    }
    auto it = handles_.find(name);
    if (it == handles_.end()) return false;
    const Kind have = it->second.kind;
    // Launches and attributes take a kernel where they take a function, as the driver does.
    if (have != kind && !(kind == Kind::function && have == Kind::kernel)) return false;
    handle = it->second.handle;
    return true;
}

uint64_t Session::name_of(const void* handle, Kind kind, const void* parent) {
    auto [it, fresh] = names_.try_emplace({kind, handle}, 0);
    if (fresh) {
        it->second = next_name_ += 16;
        handles_[it->second] = {const_cast<void*>(handle), kind, parent};
    }
    return it->second;
}

bool Session::give_name(uint64_t name, const void* handle, Kind kind) {
    return (name & wire::NAMED_BY_SHIM) &&
           handles_.try_emplace(name, Entry{const_cast<void*>(handle), kind, nullptr}).second;
}

bool Session::is_part(uint64_t name) const {
    auto it = handles_.find(name);
    return it != handles_.end() && it->second.parent;
}

void Session::drop(uint64_t name) {
    auto it = handles_.find(name);
    if (it == handles_.end()) return;
    const void* const gone = it->second.handle;
    names_.erase({it->second.kind, gone});
    linked_.erase(gone);
    handles_.erase(it);
    // What lived in it is gone too, and the driver may give its address to something else.
    std::vector<uint64_t> children;
    for (const auto& [child, entry] : handles_)
        if (entry.parent == gone) children.push_back(child);
    for (uint64_t child : children) drop(child);
}

std::vector<char>& Session::link_data(const void* link, size_t size) {
    return linked_[link].emplace_back(size);
}

// --- the threads ---

thread_local Session::Desk* Session::desk_ = nullptr;

void Session::serve() {
    {
        std::lock_guard lock(mutex_);
        called_ = 1;
    }
    work(true);
    std::unique_lock lock(mutex_);
    gone_.wait(lock, [&] { return more_ == 0; });
}

// Reads, and rests while another thread does.
void Session::work(bool stays) {
    Desk desk;
    desk_ = &desk;
    try {
        cuda().cuCtxSetCurrent(lease_.context);
        while (rest(desk, stays)) read_on(desk);
    } catch (const std::exception&) {
        // Out of host memory for what a program sent: its connection ends, the worker does not.
        end();
    }
    desk_ = nullptr;
}

void Session::read_on(Desk& desk) {
    while (desk.reads) {
        if (!channel_.read(&desk.request, sizeof desk.request) || !serve_one(desk)) {
            if (desk.reads) end();
            return;
        }
        if (desk.body.capacity() > 8 * wire::COPY_PIECE)
            desk.body = {};  // a module's image is rare; do not hold its size for ever
        if (desk.out.capacity() > 8 * wire::COPY_PIECE) desk.out = {};
    }
}

// Until it is called to read on; false: no more.
bool Session::rest(Desk& desk, bool stays) {
    std::unique_lock lock(mutex_);
    if (resting_ >= MOST_RESTING && called_ == 0 && !stays) return false;
    desk.body = {}, desk.out = {};
    ++resting_;
    call_.wait(lock, [&] { return over_ || called_ > 0; });
    --resting_;
    if (over_) return false;
    --called_;
    desk.reads = true;
    return true;
}

void Session::end() {
    std::lock_guard lock(mutex_);
    over_ = true;
    channel_.shut();
    call_.notify_all();
}

void Session::be_attentive(int watch, uint64_t number) {
    std::unique_lock lock(mutex_);
    if (attentive_) return;
    epoll_event nothing{EPOLLONESHOT, {.u64 = number}};
    if (::epoll_ctl(watch, EPOLL_CTL_ADD, channel_.socket().fd(), &nothing) != 0) return;
    attentive_ = true;
    watch_ = watch, number_ = number;
    if (waiting_) relieve(lock);  // who asks has something to say
}

void Session::expect() {  // the socket is watched until something comes, once
    epoll_event event{EPOLLIN | EPOLLONESHOT, {.u64 = number_}};
    watched_ = ::epoll_ctl(watch_, EPOLL_CTL_MOD, channel_.socket().fd(), &event) == 0;
}

void Session::look_up() {
    std::unique_lock lock(mutex_);
    if (!waiting_ || !attentive_) return;
    if (channel_.expect())
        relieve(lock);
    else
        expect();
}

// Another thread reads on.  Where there are too many already the one that waits goes on itself, later.
void Session::relieve(std::unique_lock<std::mutex>&) {
    if (resting_ > called_) {
        ++called_;
        call_.notify_one();
    } else if (more_ < MOST_THREADS && lease_.one_more_thread()) {
        auto run = [this] {
            work(false);
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

void Session::stand_aside(const void* used) {
    std::unique_lock lock(mutex_);
    if (used) ++used_[used].count;
    if (!desk_->reads) return;
    waiting_ = desk_;
    if (!attentive_) return;
    expect();
    if (channel_.expect()) relieve(lock);  // the socket says nothing of what lies in memory already
}

void Session::come_back(const void* used) {
    std::function<CUresult()> destroy;
    {
        std::lock_guard lock(mutex_);
        if (used)
            if (auto it = used_.find(used); --it->second.count == 0) {
                destroy = std::move(it->second.destroy);
                used_.erase(it);
            }
        if (desk_->reads && waiting_ != desk_) desk_->reads = false;
        if (desk_->reads) {
            waiting_ = nullptr;
            if (std::exchange(watched_, false)) {
                epoll_event nothing{EPOLLONESHOT, {.u64 = number_}};
                ::epoll_ctl(watch_, EPOLL_CTL_MOD, channel_.socket().fd(), &nothing);
            }
        }
    }
    if (destroy) destroy();
}

// To be asked tells an error once; it is kept for the program.
bool Session::is_done(CUstream stream) {
    const CUresult result = cuda().cuStreamQuery(stream);
    if (result == CUDA_ERROR_NOT_READY) return false;
    keep(result);
    return true;
}

CUresult Session::wait_for(CUstream stream) {
    auto synchronize = [&] { return cuda().cuStreamSynchronize(stream); };
    // To stand aside takes two system calls where there are other threads.
    const CUresult result = attentive_ && is_done(stream) ? synchronize() : wait(synchronize, stream);
    lease_.finished();
    return result;
}

// --- requests ---

bool Session::serve_one(Desk& desk) {
    const FrameHeader& header = desk.request;
    const Served* call = special_call(header.call);
    if (!call) call = regular_call(header.call);
    if (!call) return false;
    const auto special = static_cast<Special>(header.call);
    if (special == Special::copy_to_device) return take_bulk(desk);
    if (special == Special::copy_to_host) return give_bulk(desk);
    if (special == Special::share_memory) return share_memory(desk);
    if (header.length > wire::most_of(header.call)) return false;
    // Grow only as bytes really come: a lie about the size costs its teller nothing less than us.
    desk.body.clear();
    for (size_t got = 0; got < header.length;) {
        const size_t piece = std::min<size_t>(header.length - got, std::max<size_t>(got, 64 << 10));
        desk.body.resize(got + piece);
        if (!channel_.read(desk.body.data() + got, piece)) return false;
        got += piece;
    }
    desk.body.push_back(0);  // so that an image's text ends
    desk.question = call->question, desk.launches = lease_.launches;
    if (!desk.question) called(special == Special::launch);
    Reader in(desk.body.data(), header.length);
    desk.out.assign(sizeof(FrameHeader) + 8, 0);
    Writer out(desk.out);
    CUresult result = call->serve(*this, in, out);
    if (!call->asynchronous) return answer(desk, result);
    keep(result);
    return true;
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

bool Session::answer(Desk& desk, CUresult result, const void* bulk, size_t size) {
    // What was kept is told once, but a wait that is not over tells nothing.
    if (const CUresult kept = result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : kept_.exchange(CUDA_SUCCESS);
        result == CUDA_SUCCESS)
        result = kept;
    if (!desk.question && result == CUDA_SUCCESS &&
        lease_.stray_error.load(std::memory_order_relaxed) != CUDA_SUCCESS)
        result = lease_.stray_error.exchange(CUDA_SUCCESS);
    if (poisons(result)) lease_.poisoned = true;
    if (result != CUDA_SUCCESS) size = 0;
    std::lock_guard lock(writing_);
    // What is printed is for the program, and by kernels.
    const bool silent = desk.question || lease_.heard_out == lease_.launches;
    const std::string text = silent ? std::string() : printed_text();
    if (desk.request.call == static_cast<uint16_t>(wire::Call::cuCtxSynchronize) && result == CUDA_SUCCESS)
        lease_.heard_out = desk.launches;
    const size_t head = sizeof(FrameHeader) + 8;
    std::vector<char>& out = desk.out;
    if (!text.empty()) out.insert(out.begin() + head, text.begin(), text.end());
    const FrameHeader header{static_cast<uint32_t>(out.size() - sizeof(FrameHeader) + size),
                             desk.request.call, desk.request.number};
    const uint32_t prefix[2] = {static_cast<uint32_t>(result), static_cast<uint32_t>(text.size())};
    std::memcpy(out.data(), &header, sizeof header);
    std::memcpy(out.data() + sizeof header, prefix, sizeof prefix);
    return channel_.write(out.data(), out.size(), bulk, size);
}

}  // namespace gpukernel::worker
