// HMAC-SHA256 (RFC 2104), for the handshake and the names of images.
#pragma once

#include "common/sha256.h"

namespace gpukernel::wire {

// The MAC of the concatenated pieces.
Digest hmac_sha256(std::string_view key, std::initializer_list<std::string_view> pieces);
bool equal(const Digest& a, const uint8_t* b);  // in constant time

}  // namespace gpukernel::wire
