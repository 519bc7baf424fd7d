// One connection: a program's handles, its requests in order, and the end of everything it made.
//
// One thread reads requests and serves them.  Where it must wait for the device, and the program has other
// threads, it stands aside: as soon as something comes, another thread reads on (the server tells, who
// watches the socket meanwhile), and the first answers when its wait is over.  So requests are begun in the
// order in which they come, by one thread at a time; only what follows a wait runs beside them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "call_numbers.h"
#include "host_functions.h"
#include "lease.h"
#include "textures.h"
#include "virtual_memory.h"
#include "wire/body.h"
#include "wire/channel.h"

namespace gpukernel::worker {

using wire::Reader;
using wire::Writer;

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
    // `writing` is held while an answer goes out, so that no goodbye lands inside one.  `program` becomes
    // true with the first call: whoever only asks about the slice is none.
    Session(Lease& lease, wire::Channel& channel, std::mutex& writing, std::atomic<bool>* program = nullptr)
        : lease_(lease), channel_(channel), writing_(writing), program_(program) {}
    ~Session();
    void serve();  // until the program goes, or breaks the protocol

    void introduce(uint32_t pid, std::string_view command, uint64_t key) {
        lease_.introduce(this, pid, command);
        key_ = key;
    }

    // --- the server's ---
    uint64_t key() const { return key_; }
    // From now on requests are served while one of them waits.  `watch` is an epoll descriptor that tells
    // `number` when something has come while the reader waits.
    void be_attentive(int watch, uint64_t number);
    void look_up();  // something has come: somebody else reads on
    void left();     // the program has, though it is still served: none of its functions will run

    // --- what serves requests ---
    Lease& lease() { return lease_; }
    VirtualMemory& virtual_memory() { return virtual_memory_; }
    const std::shared_ptr<HostFunctions>& host_functions() const { return host_functions_; }
    void hear_of(std::shared_ptr<HostFunctions> functions);  // of another session, whose program this is
    Driver& cuda() { return lease_.cuda; }
    CUdevice device() const { return lease_.device; }

    // Waits for the device.  A stream or event that is waited for outlives the wait.
    template <class Function>
    CUresult wait(Function&& function, const void* used = nullptr) {
        stand_aside(used);
        const CUresult result = function();
        come_back(used);
        return result;
    }
    CUresult wait_for(CUstream stream);
    // Destroys a stream or event, or has whoever still waits for it do so.
    template <class Function>
    CUresult destroy(const void* handle, Function&& function) {
        {
            std::lock_guard lock(mutex_);
            if (auto it = used_.find(handle); it != used_.end()) {
                it->second.destroy = function;
                return CUDA_SUCCESS;
            }
        }
        return function();
    }

    // A client's number for a handle becomes the driver's handle only if this session has it, of that kind.
    template <class Handle>
    bool handle(uint64_t name, Kind kind, Handle& handle) {
        void* found = nullptr;
        if (!find(name, kind, found)) return false;
        handle = static_cast<Handle>(found);
        return true;
    }
    // The worker's number for a handle: the same each time, until the handle or its parent is dropped.
    uint64_t name_of(const void* handle, Kind kind, const void* parent = nullptr);
    // The shim's number for it; false: taken already, or not the shim's to choose.
    bool give_name(uint64_t name, const void* handle, Kind kind);
    void drop(uint64_t name);
    void end_everything();              // that this program made on the device: its memory too
    bool is_part(uint64_t name) const;  // of a handle that it goes with
    // An error of an earlier call that will be told instead of this one's success: what would be made now,
    // nobody would get.
    CUresult kept_error() const { return kept_; }
    std::vector<char>& link_data(const void* link, size_t size);
    Views views;  // what was made of arrays and memory for kernels to read

  private:
    struct Entry {
        void* handle;
        Kind kind;
        const void* parent;  // the module of a function: they go together
    };
    struct Use {
        int count = 0;
        std::function<CUresult()> destroy;
    };
    // What one thread works with.
    struct Desk {
        std::vector<char> body, out;
        wire::FrameHeader request{};
        bool question = false;  // what is being answered: no call of a program
        bool reads = false;     // the next request is this thread's, too
        uint64_t launches = 0;  // of the lease, when the request came
    };
    static thread_local Desk* desk_;

    bool find(uint64_t name, Kind kind, void*& handle);
    void work(bool stays);
    void read_on(Desk& desk);
    bool rest(Desk& desk, bool stays);
    void end();
    void expect();
    void relieve(std::unique_lock<std::mutex>& lock);
    void stand_aside(const void* used);
    void come_back(const void* used);
    bool serve_one(Desk& desk);
    bool take_bulk(Desk& desk);
    bool give_bulk(Desk& desk);
    bool share_memory(Desk& desk);
    // Writes the frame whose outputs are in desk.out, and after them `size` bytes of `bulk`.
    bool answer(Desk& desk, CUresult result, const void* bulk = nullptr, size_t size = 0);
    void keep(CUresult result);
    bool is_done(CUstream stream);
    bool at_rest(CUstream stream);
    char* host_pointer(CUdeviceptr address);
    void called(bool launch);

    Lease& lease_;
    wire::Channel& channel_;
    std::mutex& writing_;
    std::atomic<bool>* const program_;
    // Only the thread that reads:
    std::unordered_map<uint64_t, Entry> handles_;
    std::map<std::pair<Kind, const void*>, uint64_t> names_;
    std::unordered_map<const void*, std::vector<std::vector<char>>> linked_;
    VirtualMemory virtual_memory_{*this};
    const std::shared_ptr<HostFunctions> host_functions_ = std::make_shared<HostFunctions>();
    uint64_t next_name_ = 0x1000;
    bool is_program_ = false;  // it asked more than questions
    CUstream own_default_ =
        nullptr;  // what stands for CU_STREAM_PER_THREAD: threads here are none of the program's
    std::atomic<uint64_t> key_{0};
    std::atomic<CUresult> kept_{CUDA_SUCCESS};  // the first error of a call that was not answered

    std::mutex mutex_;  // what follows
    std::shared_ptr<HostFunctions> hears_of_;
    bool left_ = false;
    std::unordered_map<const void*, Use> used_;
    Desk* waiting_ = nullptr;  // of the reader, while it waits
    std::atomic<bool> attentive_ = false;
    bool watched_ = false, over_ = false;
    int watch_ = -1;
    uint64_t number_ = 0;
    int more_ = 0, resting_ = 0,
        called_ = 0;  // threads beside the connection's own; all that rest; that are called
    std::condition_variable call_, gone_;
};

// What device code printed since the last time; the worker's own standard output is a pipe.
std::string printed_text();
bool capture_output();

// Copies of boxes, in arrays.cpp.
CUresult copy_box(Session& session, Reader& in, Writer& out);
CUresult box_to_device(Session& session, Reader& in, Writer& out);
CUresult box_to_host(Session& session, Reader& in, Writer& out);

using Serve = CUresult (*)(Session&, Reader&, Writer&);
struct Served {
    const char* name;
    Serve serve;
    bool asynchronous;
    bool question = false;  // about the slice: no call of a program
};
// By wire::Special, and by wire::Call; null where the number is none.
const Served* special_call(uint16_t number);
const Served* regular_call(uint16_t number);

bool poisons(CUresult code);  // the context is lost until the worker starts anew

}  // namespace gpukernel::worker
