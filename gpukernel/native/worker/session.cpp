#include "session.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace gpukernel::worker {

using wire::FrameHeader;
using wire::Special;

namespace {
int output_pipe = -1;
}

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

Session::~Session() {
    if (!is_program_) return;
    if (poisons(cuda().cuCtxSynchronize())) lease_.poisoned = true;  // a fault that nobody waited for
    lease_.finished();
    std::lock_guard taking(lease_.taking);
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
            default:
                break;  // functions go with their modules
        }
    }
    if (lease_.connections == 1) {  // the context is nobody's now: the next program finds it as it was
        for (auto [limit, value] : lease_.usual_limits)
            if (cuda().cuCtxSetLimit(limit, value) == CUDA_SUCCESS) lease_.set_aside(limit, 0);
        lease_.usual_limits.clear();
    }
    lease_.forget(this, [this](CUdeviceptr address) { cuda().cuMemFree_v2(address); });
    lease_.leave(this);
}

bool Session::find(uint64_t name, Kind kind, void*& handle) const {
    if (kind == Kind::stream && name <= reinterpret_cast<uintptr_t>(CU_STREAM_PER_THREAD)) {
        handle = reinterpret_cast<void*>(name);  // the default streams
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

void Session::serve() {
    cuda().cuCtxSetCurrent(lease_.context);
    FrameHeader header;
    while (channel_.read(&header, sizeof header) && serve_one(header)) {
        if (body_.capacity() > 8 * wire::COPY_PIECE)
            body_ = {};  // a module's image is rare; do not hold its size for ever
        if (out_.capacity() > 8 * wire::COPY_PIECE) out_ = {};
    }
}

bool Session::serve_one(const FrameHeader& header) {
    const Served* call = special_call(header.call);
    if (!call) call = regular_call(header.call);
    if (!call) return false;
    const auto special = static_cast<Special>(header.call);
    if (special == Special::copy_to_device) return take_bulk(header);
    if (special == Special::copy_to_host) return give_bulk(header);
    if (special == Special::share_memory) return share_memory(header);
    if (header.length > wire::most_of(header.call)) return false;
    // Grow only as bytes really come: a lie about the size costs its teller nothing less than us.
    body_.clear();
    for (size_t got = 0; got < header.length;) {
        const size_t piece = std::min<size_t>(header.length - got, std::max<size_t>(got, 64 << 10));
        body_.resize(got + piece);
        if (!channel_.read(body_.data() + got, piece)) return false;
        got += piece;
    }
    body_.push_back(0);  // so that an image's text ends
    question_ = call->question;
    if (!question_) called(special == Special::launch);
    Reader in(body_.data(), header.length);
    out_.assign(sizeof(FrameHeader) + 8, 0);
    Writer out(out_);
    CUresult result = call->serve(*this, in, out);
    if (!call->asynchronous) return answer(header.call, result);
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
    if (kept_ == CUDA_SUCCESS) kept_ = result;
}

bool Session::answer(uint16_t call, CUresult result, const void* bulk, size_t size) {
    if (result == CUDA_SUCCESS && kept_ != CUDA_SUCCESS) result = kept_;
    if (!question_ && result == CUDA_SUCCESS &&
        lease_.stray_error.load(std::memory_order_relaxed) != CUDA_SUCCESS)
        result = lease_.stray_error.exchange(CUDA_SUCCESS);
    if (poisons(result)) lease_.poisoned = true;
    if (result != CUDA_SUCCESS) size = 0;
    if (result != CUDA_ERROR_NOT_READY) kept_ = CUDA_SUCCESS;
    const std::string text = question_ ? std::string() : printed_text();  // it is for the program
    const size_t head = sizeof(FrameHeader) + 8;
    if (!text.empty()) out_.insert(out_.begin() + head, text.begin(), text.end());
    const FrameHeader header{static_cast<uint32_t>(out_.size() - sizeof(FrameHeader) + size), call, 0};
    const uint32_t prefix[2] = {static_cast<uint32_t>(result), static_cast<uint32_t>(text.size())};
    std::memcpy(out_.data(), &header, sizeof header);
    std::memcpy(out_.data() + sizeof header, prefix, sizeof prefix);
    std::lock_guard lock(writing_);
    return channel_.write(out_.data(), out_.size(), bulk, size);
}

}  // namespace gpukernel::worker
