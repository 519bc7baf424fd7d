// Work of a library on the simulated device: in a stream's order, by the device's threads, its accesses
// checked.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

#include "libraries/library.h"
#include "simgpu/native_work.h"
#include "simgpu_libraries/room.h"

namespace gpukernel::simgpu_libraries {

// An access outside the allocations: the context is lost, as by a kernel that does this.
struct OutOfBounds {
    uint64_t address, bytes;
    const char* what;
};

// What one piece of work may touch.
class Access {
  public:
    explicit Access(const simgpu::NativeAccess* access) : access_(access) {}
    void check(uint64_t address, uint64_t bytes, bool writing, const char* what) const {
        if (bytes && !access_->allowed(access_->device, address, bytes, writing))
            throw OutOfBounds{address, bytes, what};
    }
    template <class T>
    T read(uint64_t address, const char* what) const {
        check(address, sizeof(T), false, what);
        T value;
        __builtin_memcpy(&value, reinterpret_cast<const void*>(address), sizeof value);
        return value;
    }

  private:
    const simgpu::NativeAccess* access_;
};

// A piece takes about a millisecond: the device can be paused between two.
using Piece = std::function<void(uint64_t number, const Access& access)>;

// Puts `pieces` pieces into the stream; `name` is the function's, for people.  Where the slice has not
// `needed` bytes of the host's memory, the call is refused at once; what is taken, and whether it may be, is
// what the pieces' rooms (room.h) count.
CUresult submit(CUstream stream, const char* name, uint64_t pieces, Piece piece, uint64_t needed = 0);
CUresult synchronize(CUstream stream);
// Whether the libcuda.so.1 of this process is the simulated GPU's; one sentence where it is not.
bool on_simulated_device();

}  // namespace gpukernel::simgpu_libraries
