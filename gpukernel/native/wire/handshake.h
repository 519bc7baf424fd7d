// The shim's end of the handshake that protocol.h specifies.
#pragma once

#include <string>
#include <vector>

#include "wire/socket.h"

namespace gpukernel::wire {

// The first endpoint that answers and proves itself; reads and writes still have the limit of `seconds`.  An
// empty socket, and `error` says why, where none does.
Socket connect_to_worker(const std::vector<std::string>& endpoints, const std::string& secret, int seconds,
                         std::string& error);

}  // namespace gpukernel::wire
