// What a program will ask next, where it can be known: fewer of its calls wait for the network.
//
// Training loops wait for the device, or for a stream, and then read a value, again and again.  After the
// first time the read is asked for together with the wait, so that both take one round trip.  An allocator
// gives several addresses in turn, so what is expected is what came after the last two before.  (What needs
// no question at all is in finished.h.)
//
// After a wait for the device that holds only until the connection's next request, whichever thread makes it;
// nothing is read with several threads, where the worker serves what comes with a wait before the wait is
// over.  With a wait for a stream the read is one in that stream, behind all its work.  It is asked for only
// where that is all the work so far that changes the device's memory (finished.h), and holds until a request
// is made that may change some; it is of a block that the program has, so that an error is one of earlier
// work, whichever of the two answers tells of it.
//
// With managed memory, whose pages may change meanwhile, nothing is read ahead.  Nor is it where another
// program shares memory with this one and may write it after the wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "libcuda/entry_points.h"

namespace gpukernel::shim {

class Connection;

struct DeviceRead {
    CUdeviceptr address = 0;
    uint64_t stream = 0, bytes = 0;
    bool operator==(const DeviceRead&) const = default;
};

// Of one connection; under its mutex, but for the atomics.
struct Foresight {
    static constexpr uint64_t MOST = 16 << 10;  // bytes that are read ahead

    uint64_t requests = 0;  // that the connection has made so far
    uint64_t waited = 0;    // the number of the newest wait, or of what came with it
    bool of_device = true;  // that wait was for the device, or for a stream
    bool shares = false;    // memory with another program
    // Reads that followed waits: by the addresses of the two before, and those of the newest two.
    using Two = std::pair<CUdeviceptr, CUdeviceptr>;
    std::map<Two, DeviceRead> followers;
    Two follows;
    bool may_follow = false;            // nothing was read since the newest wait
    bool is_asked = false;              // a read is on its way with a wait
    int in_vain = 0;                    // how many were not used, one after the other
    int skipped = 0;                    // waits with which none was asked for, for that reason
    std::optional<DeviceRead> ahead;    // that came with the newest wait
    std::atomic<bool> is_ahead{false};  // and lies here:
    std::vector<char> data;

    uint64_t last = 0;  // of the newest read or wait for the device; a stream whose work it waits for: after
    uint64_t stream = 0;            // a wait for the device the default one, since others may not exist
    std::atomic<uint64_t> over{0};  // the number of one that is over
};

// Another program may write this one's memory, or this one another's, from now on.
void share_memory(Connection& connection);
// Implements cuCtxSynchronize, or cuStreamSynchronize, where nothing is managed; nothing where an error is to
// be told first.
std::optional<CUresult> wait_and_read_ahead(Connection& connection,
                                            std::optional<uint64_t> stream = std::nullopt);
// Gives what was read ahead, if it is this and nothing was asked since; false where not.
bool take_read_ahead(Connection& connection, const DeviceRead& read, void* to);
// Under the mutex: a request has begun that reads this; returns its number, which is to be stored in `over`
// when it is.
uint64_t note_read(Connection& connection, const DeviceRead& read);

}  // namespace gpukernel::shim
