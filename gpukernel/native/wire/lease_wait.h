// The wait in the pool's queue for a lease.  A program does not speak with the pool: it asks the kernel's
// lease manager, at the socket that the lease file names.  gpukernel/jupyter/kernel_socket.py specifies the
// protocol.
#pragma once

#include <string>

namespace gpukernel::wire {

enum class LeaseWait {
    granted,  // the lease file describes the slice
    left,     // the place was given up, by an interrupt for example; the next call may ask again
    refused,  // there will be no slice
};

// Waits until `kernel` has a slice and shows its place in the queue as one line on stdout, which is
// overwritten.  Where it has none in the end, `error` says why.
LeaseWait wait_for_lease(const std::string& kernel_socket, const std::string& kernel, std::string& error);

}  // namespace gpukernel::wire
