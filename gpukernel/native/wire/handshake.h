// The shim's end of the handshake that protocol.h specifies, and the proofs of both.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/hmac.h"
#include "wire/channel.h"
#include "wire/protocol.h"

namespace gpukernel::wire {

// The MAC of one end's proof: `whose` is "shim" or "worker", and the other end's nonce comes first.
Digest proof_of(std::string_view whose, const std::string& secret, const uint8_t (&theirs)[NONCE],
                const uint8_t (&own)[NONCE], const Channel& channel);

// Connects to the first endpoint whose worker completes the handshake, with TLS where the endpoint says so.
// The limit of `seconds` for connecting, reads and writes remains set.  Returns an empty channel, and `error`
// says why, where no worker does.
Channel connect_to_worker(const std::vector<std::string>& endpoints, const std::string& secret, int seconds,
                          std::string& error);

}  // namespace gpukernel::wire
