// One call of a library with a handle (libraries/handles.h) in the user's program.
//
// Its words begin with the handle's number and its modes.  Sizes of workspaces are asked for once for each
// set of arguments, whose addresses count only as null or not, and never where the device is simulated: what
// computes there needs none.
#pragma once

#include <bitset>
#include <span>

#include "libraries/client.h"
#include "libraries/handles.h"
#include "libraries/numbers.h"

namespace gpukernel::libraries {

class QueuedCall {
  public:
    QueuedCall(void* handle, uint32_t library, const char* name, uint32_t function);
    bool ready() const { return !status_; }
    int status() const { return status_; }
    bool simulated() const { return handle_->simulated; }

    void number(int64_t value) { words_.number(static_cast<uint64_t>(value)); }
    void device(const void* address) { words_.number(reinterpret_cast<uint64_t>(address)); }
    // An address that a workspace's size does not depend on, except that NVIDIA's libraries refuse null.
    void place(const void* address) {
        places_.set(words_.count());
        device(address);
    }
    void bytes(const void* data, size_t size) { words_.bytes(data, size); }
    void scalar(const void* value, size_t bytes);
    void result(void* place, size_t bytes);
    void room(void* place, size_t bytes);  // a workspace's size, an int or a size_t
    void none(void*) {}                    // what does not travel
    // Doubles of the host: 0, or NaN where nobody knows.
    void unknown(void* place, int64_t count);

    int queue();
    // Waits for the result where it goes to the host.
    int ask();
    // Waits for the stream, and for a result of `bytes`.
    int ask(void* place, size_t bytes);
    // Fills the rooms.
    int measure();

  private:
    static constexpr size_t MOST_ROOMS = 2;
    PortCall made() const;
    int fill(const uint64_t* sizes);

    StreamHandle* const handle_;
    const uint32_t library_, function_;
    const char* const name_;
    int status_ = 0;
    struct Room {
        void* place;
        size_t bytes;
    } rooms_[MOST_ROOMS];
    size_t room_count_ = 0, result_bytes_ = 0;
    void* result_ = nullptr;  // on the host
    Words words_;
    std::bitset<Words::MOST + 1> places_;
};

// `more` is what the worker needs to know of it beside its number.
int create_handle(void** handle, uint32_t library, const char* name, std::span<const uint64_t> more = {});
int destroy_handle(void* handle, uint32_t library);

}  // namespace gpukernel::libraries
