// One connection: a program's handles, its requests in order, and the end of everything it made.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "call_numbers.h"
#include "lease.h"
#include "wire/body.h"
#include "wire/channel.h"

namespace gpukernel::worker {

using wire::Reader;
using wire::Writer;

enum class Kind : uint8_t { module, library, function, kernel, stream, event, link };

class Session {
  public:
    // `writing` is held while an answer goes out, so that no goodbye lands inside one.  `program` becomes
    // true with the first call: whoever only asks about the slice is none.
    Session(Lease& lease, wire::Channel& channel, std::mutex& writing, std::atomic<bool>* program = nullptr)
        : lease_(lease), channel_(channel), writing_(writing), program_(program) {}
    ~Session();
    void serve();  // until the program goes, or breaks the protocol

    void introduce(uint32_t pid, std::string_view command) { lease_.introduce(this, pid, command); }

    Lease& lease() { return lease_; }
    Driver& cuda() { return lease_.cuda; }
    CUdevice device() const { return lease_.device; }

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
    // An error of an earlier call that will be told instead of this one's success: what would be made now,
    // nobody would get.
    CUresult kept_error() const { return kept_; }
    std::vector<char>& link_data(const void* link, size_t size);

  private:
    struct Entry {
        void* handle;
        Kind kind;
        const void* parent;  // the module of a function: they go together
    };
    bool find(uint64_t name, Kind kind, void*& handle) const;
    bool serve_one(const wire::FrameHeader& header);
    bool take_bulk(const wire::FrameHeader& header);
    bool give_bulk(const wire::FrameHeader& header);
    bool share_memory(const wire::FrameHeader& header);
    // Writes the frame whose outputs are in out_, and after them `size` bytes of `bulk`.
    bool answer(uint16_t call, CUresult result, const void* bulk = nullptr, size_t size = 0);
    void keep(CUresult result);
    char* host_pointer(CUdeviceptr address);
    void called(bool launch);

    Lease& lease_;
    wire::Channel& channel_;
    std::mutex& writing_;
    std::atomic<bool>* const program_;
    std::unordered_map<uint64_t, Entry> handles_;
    std::map<std::pair<Kind, const void*>, uint64_t> names_;
    std::unordered_map<const void*, std::vector<std::vector<char>>> linked_;
    uint64_t next_name_ = 0x1000;
    bool question_ = false;         // what is being answered: no call of a program
    bool is_program_ = false;       // it asked for more than `device` and `usage`
    CUresult kept_ = CUDA_SUCCESS;  // the first error of a call that was not answered
    std::vector<char> body_, out_;
};

// What device code printed since the last time; the worker's own standard output is a pipe.
std::string printed_text();
bool capture_output();

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
