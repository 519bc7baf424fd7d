#include "common/hmac.h"

#include <cstring>

namespace gpukernel::wire {

namespace {
std::string_view view(const void* data, size_t size) { return {static_cast<const char*>(data), size}; }
}  // namespace

Digest hmac_sha256(std::string_view key, std::initializer_list<std::string_view> pieces) {
    uint8_t inner[64] = {}, outer[64];
    if (key.size() > 64) {
        Digest digest = sha256({key});
        std::memcpy(inner, digest.data(), digest.size());
    } else {
        std::memcpy(inner, key.data(), key.size());
    }
    for (int i = 0; i < 64; ++i) outer[i] = inner[i] ^ 0x5c, inner[i] ^= 0x36;
    Sha256 hash;
    hash.add(view(inner, 64));
    for (std::string_view piece : pieces) hash.add(piece);
    Digest digest = hash.finish();
    return sha256({view(outer, 64), view(digest.data(), digest.size())});
}

bool equal(const Digest& a, const uint8_t* b) {
    uint8_t difference = 0;
    for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
    return difference == 0;
}

}  // namespace gpukernel::wire
