// The shim's end of the handshake that protocol.h specifies.
#pragma once

#include <string>
#include <vector>

#include "wire/socket.h"

namespace gpukernel::wire {

// Connects to the first endpoint whose worker completes the handshake.  The limit of `seconds` for
// connecting, reads and writes remains set.  Returns an empty socket, and `error` says why, where no worker
// does.
Socket connect_to_worker(const std::vector<std::string>& endpoints, const std::string& secret, int seconds,
                         std::string& error);

}  // namespace gpukernel::wire
