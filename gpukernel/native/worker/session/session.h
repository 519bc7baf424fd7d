// One connection: a program's handles, its requests in order, and the release of everything that it made.
//
// One thread reads requests and serves them.  Where a request waits for the device, and the program has
// several threads, another thread of the worker takes over the reading as soon as something comes (the server
// watches the socket meanwhile), and the first answers when its wait is over.  So requests begin in the order
// in which they come, one at a time, and only what follows a wait runs concurrently.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "calls.h"
#include "wire/body.h"
#include "wire/channel.h"
#include "worker/calls/textures.h"
#include "worker/calls/virtual_memory.h"
#include "worker/lease/lease.h"
#include "worker/libraries/libraries.h"
#include "worker/session/host_functions.h"
#include "worker/session/memory_checks.h"

namespace gpukernel::worker {

using wire::Reader;
using wire::Writer;

// Bytes of an answer before its printed text and outputs.
constexpr size_t ANSWER_BYTES = sizeof(wire::FrameHeader) + sizeof(wire::AnswerHead);

// The kinds of handles that a program may have.
enum class Kind : uint8_t {
    module,
    library,
    function,
    kernel,
    stream,
    event,
    link,
    array,
    mipmap,
    texture_reference,
    surface_reference,
    memory,
};

class Session {
  public:
    // `writing` is held while an answer is written, so that no GOODBYE is written inside one.  `program`
    // becomes true with the first call that is no question: until then the connection is no program.
    Session(Lease& lease, wire::Channel& channel, std::mutex& writing, std::atomic<bool>* program = nullptr)
        : lease_(lease),
          channel_(channel),
          writing_(writing),
          program_(program),
          program_number_(++lease.programs_so_far) {}
    ~Session();
    void serve();  // until the program closes the connection or violates the protocol

    void introduce(uint32_t pid, std::string_view command, uint64_t key) {
        lease_.introduce(this, pid, command);
        key_ = key;
    }

    // Among all programs that the lease has had: no other ever has it.
    uint64_t program_number() const { return program_number_; }

    // --- for the server ---
    uint64_t key() const { return key_; }
    // From now on serves requests while one of them waits.  `poll` is an epoll descriptor that reports
    // `number` when something can be read while the reading thread waits.
    void serve_while_waiting(int poll, uint64_t number);
    void resume_reading();  // something can be read: another thread takes over
    // The program is gone, though a request is still served: no host function will run, no later request is
    // served, and its work is cancelled where the device allows it.
    void left();

    // --- for the handlers of calls ---
    Lease& lease() { return lease_; }
    VirtualMemory& virtual_memory() { return virtual_memory_; }
    const std::shared_ptr<HostFunctions>& host_functions() const { return host_functions_; }
    // This connection reports the host functions of another session: both belong to one program.
    void follow(std::shared_ptr<HostFunctions> functions);
    Driver& cuda() { return lease_.cuda; }
    CUdevice device() const { return lease_.device; }

    // Calls `function`, which waits for the device, while other threads serve later requests.  The stream or
    // event `used` is not destroyed before the wait is over.
    template <class Function>
    CUresult wait(Function&& function, const void* used = nullptr) {
        const Hold hold(*this, used);
        begin_wait();
        const CUresult result = function();
        end_wait();
        return result;
    }
    // Keeps a stream that was looked up from being destroyed while this thread waits and uses it.
    class Hold {
      public:
        Hold(Session& session, const void* used) : session_(session), used_(used) {
            if (!used_) return;
            std::lock_guard lock(session_.mutex_);
            ++session_.used_[used_].count;
        }
        ~Hold() {
            if (used_) session_.release(used_);
        }
        Hold(const Hold&) = delete;

      private:
        Session& session_;
        const void* const used_;
    };
    CUresult wait_for(CUstream stream);
    CUresult wait_for_all();  // of the context's streams
    // Charges device memory in advance, after waiting for what programs have freed where it does not fit.
    CUresult reserve(uint64_t bytes);
    // The bytes that a limit of the context sets aside on the device, which the lease is charged for, where
    // it has this value and kernels need as much local memory as those used so far.  What the driver sets
    // aside by itself is the context's own.  Under `allocation_mutex`.
    uint64_t set_aside_by(CUlimit limit, uint64_t value);
    // Waits for memory that programs have freed, which the device may still use; false where none came.
    // While a call that is only queued waits so, the next ones stay behind: they may depend on it.
    bool wait_for_memory(uint64_t seen);
    // From now on streams of this program may wait for the program itself.
    void waits_for_host() {
        if (!std::exchange(waits_for_host_, true)) ++lease_.waits_for_host;
    }
    // Frees memory at once.
    bool free(CUdeviceptr address);
    // Destroys a stream or event, at once or when the last wait for it is over.
    template <class Function>
    CUresult destroy(const void* handle, Function&& function) {
        {
            std::lock_guard lock(mutex_);
            if (auto it = used_.find(handle); it != used_.end()) {
                // An event may have several handles.
                it->second.destroy = [before = std::move(it->second.destroy), function] {
                    if (before) before();
                    return function();
                };
                return CUDA_SUCCESS;
            }
        }
        return function();
    }

    // Translates the program's number of a handle into the driver's; false unless this session has such a
    // handle, of that kind.
    template <class Handle>
    bool handle(uint64_t name, Kind kind, Handle& handle) {
        void* found = nullptr;
        if (!find(name, kind, found)) return false;
        handle = static_cast<Handle>(found);
        return true;
    }
    // The program's number of a handle: the same each time, until the handle or its parent is dropped.
    uint64_t number_of(const void* handle, Kind kind, const void* parent = nullptr, HostCharge charge = {});
    // Gives a handle the number that the shim chose; false where it is in use or not the shim's to choose.
    bool accept_number(uint64_t name, const void* handle, Kind kind, HostCharge charge);
    // A charge of host memory for something that is going to be made; nothing where that is beyond the limit.
    std::optional<HostCharge> host_charge(uint64_t bytes) {
        HostCharge charge(lease_.host_memory);
        return charge.grow(bytes) ? std::optional(std::move(charge)) : std::nullopt;
    }
    void drop(uint64_t name);
    void release_everything();                   // that this program made on the device, memory included
    const void* parent_of(uint64_t name) const;  // the handle that it is released with, or nullptr
    // The module or library that the program loaded and that a handle belongs to: its code is charged to
    // that.
    const void* loaded_with(const void* handle) const;
    // The error of an earlier asynchronous call, which the next answer returns instead of success.  A call
    // that creates something checks it first, since the program would not receive the result.
    CUresult kept_error() const { return kept_; }
    void keep(CUresult result);
    // Whether the next answer says more than its own result: an error, or text.
    bool has_to_tell() const;
    // Memory for what a linker is given; nullptr where it is beyond the limit of host memory.
    std::vector<char>* link_data(const void* link, size_t size);
    Views views;  // texture and surface objects
    MemoryChecks memory_checks;
    LibraryObjects library_objects;
    // A line on the program's standard error, with its next answer; the same sentence once.
    void warn(const std::string& sentence) { memory_checks.warn(sentence); }

  private:
    struct OwnedHandle {
        void* handle;
        Kind kind;
        const void* parent;  // the handle that it is released with, as a function with its module
        HostCharge charge;
        CUfunction function = nullptr;  // what is launched, in this context, once it was used and is loaded
    };
    // The waits for a stream or event, and its destruction where that must come after them.
    struct PendingWaits {
        int count = 0;
        std::function<CUresult()> destroy;
    };
    // The request that one thread serves.
    struct RequestContext {
        std::vector<char> body, out;
        HostCharge charge;  // of both
        wire::FrameHeader request{};
        bool question = false;  // by its call's flag
        bool queued = false;    // it gets no answer
        // Why code that its call needs could not be loaded: what it returns in place of an invalid handle.
        CUresult not_loaded = CUDA_SUCCESS;
        bool reads = false;     // this thread reads the next request, too
        uint64_t launches = 0;  // of the lease, when the request came
    };
    static thread_local RequestContext* context_;

    bool find(uint64_t name, Kind kind, void*& handle);
    bool load_function(CUfunction& function, bool of_kernel, const void* owner);
    CUresult set_local_memory_aside(CUfunction function);
    void run_thread(bool stays);
    void read_requests(RequestContext& context);
    bool wait_for_reading(RequestContext& context, bool stays);
    void end();
    void watch_socket();
    void hand_over_reading(std::unique_lock<std::mutex>& lock);
    void begin_wait();
    void end_wait();
    void release(const void* used);
    void drop_under_lock(uint64_t name);
    const void* loaded_with_under_lock(const void* handle) const;
    bool serve_one(RequestContext& context);
    bool read_body(RequestContext& context, bool& fits);
    void release_buffers(RequestContext& context);
    std::string host_memory_sentence();
    bool serve_copy_to_device(RequestContext& context);
    bool serve_copy_to_host(RequestContext& context);
    bool serve_share_memory(RequestContext& context);
    // Writes the frame whose outputs are in context.out, and after them `size` bytes of `bulk`.
    bool answer(RequestContext& context, CUresult result, const void* bulk = nullptr, size_t size = 0);
    bool is_done(CUstream stream);
    uint64_t flush_freed(std::optional<CUstream> stream);
    void settle_freed(uint64_t flushed, std::optional<CUstream> stream, CUresult waited);
    bool can_copy_now(CUstream stream);
    char* host_pointer(CUdeviceptr address);
    void called(bool launch);
    void cancel_work() {
        if (cuda().end_program) cuda().end_program(program_number_);
    }

    Lease& lease_;
    wire::Channel& channel_;
    std::mutex& writing_;
    std::atomic<bool>* const program_;
    // A thread that has waited for memory names what it made while another one reads.
    mutable std::mutex handles_mutex_;  // guards these three
    std::unordered_map<uint64_t, OwnedHandle> handles_;
    std::map<std::pair<Kind, const void*>, uint64_t> names_;
    uint64_t next_name_ = 0x1000;
    // Used by the reading thread only:
    struct Linked {
        HostCharge charge;
        std::vector<std::vector<char>> inputs;
    };
    std::unordered_map<const void*, Linked> linked_;
    HostCharge ring_charge_{lease_.host_memory};
    const uint64_t refusals_before_ = lease_.host_memory.refusals();
    std::atomic<bool> told_of_host_memory_{false};
    VirtualMemory virtual_memory_{*this};
    const std::shared_ptr<HostFunctions> host_functions_ =
        std::make_shared<HostFunctions>(*this, lease_.host_memory);
    const uint64_t program_number_;  // common/cancellation.h
    std::atomic<bool> left_{false};
    bool is_program_ = false;  // it sent a call that is no question
    // Stands for CU_STREAM_PER_THREAD, since the worker's threads are not the program's.
    CUstream own_default_ = nullptr;
    bool waits_for_host_ = false;
    std::atomic<uint64_t> key_{0};
    std::atomic<CUresult> kept_{CUDA_SUCCESS};  // the first error of a call that was not answered

    std::mutex mutex_;  // guards everything below
    std::shared_ptr<HostFunctions> followed_host_functions_;
    std::unordered_map<const void*, PendingWaits> used_;
    RequestContext* waiting_ = nullptr;  // of the reading thread, while it waits
    std::atomic<bool> serves_while_waiting_ = false;
    bool watched_ = false, over_ = false;
    int poll_ = -1;
    uint64_t number_ = 0;
    // Threads besides the connection's own; threads without a request; threads that shall take over the
    // reading.
    int more_ = 0, resting_ = 0, called_ = 0;
    std::condition_variable call_, gone_;
};

// Replaces the worker's standard output, to which device code prints, by a pipe.
bool capture_output();
// The text that device code has printed since the last call.
std::string printed_text();

// One row of the tables that are generated from codegen/calls.txt, whose flags it has.
struct ServedCall {
    const char* name;
    CUresult (*serve)(Session&, Reader&, Writer&);  // nullptr where the call is `streamed`
    bool asynchronous;
    bool question = false;
};
// The row of a wire::CustomCall or wire::DriverCall; nullptr for a number that is none.
const ServedCall* custom_call(uint16_t number);
const ServedCall* driver_call(uint16_t number);

// Whether kernels may run for a call, and print.
constexpr bool launches(wire::CustomCall call) {
    return call == wire::CustomCall::launch || call == wire::CustomCall::library_call ||
           call == wire::CustomCall::library_ask;
}

// Whether an error is sticky: the context is lost until the worker restarts itself.
bool poisons(CUresult code);

}  // namespace gpukernel::worker
