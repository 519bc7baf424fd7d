// SHA-256 (FIPS 180-4) and HMAC (RFC 2104), which the handshake needs and nothing else does.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace gpukernel::wire {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::initializer_list<std::string_view> pieces);
Digest hmac_sha256(std::string_view key, std::initializer_list<std::string_view> pieces);
bool equal(const Digest& a, const uint8_t* b);  // in constant time

}  // namespace gpukernel::wire
