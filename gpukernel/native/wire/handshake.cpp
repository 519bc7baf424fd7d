#include "wire/handshake.h"

#include <sys/random.h>

#include <cstring>

#include "common/hmac.h"
#include "wire/protocol.h"

namespace gpukernel::wire {

namespace {
std::string_view view(const uint8_t* data, size_t size) {
    return {reinterpret_cast<const char*>(data), size};
}

bool shake_hands(Socket& socket, const std::string& secret, std::string& error) {
    Challenge challenge;
    Proof proof{MAGIC, VERSION, {}, {}};
    Welcome welcome;
    error = "its worker does not speak this version of the protocol";
    if (!socket.read(&challenge, sizeof challenge) || challenge.magic != MAGIC ||
        challenge.version != VERSION)
        return false;
    if (::getrandom(proof.nonce, sizeof proof.nonce, 0) != sizeof proof.nonce) return false;
    const auto theirs = view(challenge.nonce, NONCE), ours = view(proof.nonce, NONCE);
    Digest mac = hmac_sha256(secret, {"shim", theirs, ours});
    std::memcpy(proof.mac, mac.data(), MAC);
    if (!socket.write(&proof, sizeof proof) || !socket.read(&welcome, sizeof welcome) ||
        welcome.magic != MAGIC) {
        error = "its worker ended the connection";
        return false;
    }
    if (welcome.status != Admission::welcome) {
        error = welcome.status == Admission::full ? "too many programs use this slice"
                                                  : "its worker refused the lease's secret";
        return false;
    }
    if (!equal(hmac_sha256(secret, {"worker", ours, theirs}), welcome.mac)) {
        error = "what answers at its address is not its worker";
        return false;
    }
    return true;
}
}  // namespace

Socket connect_to_worker(const std::vector<std::string>& endpoints, const std::string& secret, int seconds,
                         std::string& error) {
    error = "the lease names no worker";
    for (const std::string& endpoint : endpoints) {
        Socket socket = connect_to(endpoint, seconds, error);
        if (!socket) continue;
        socket.timeout(seconds);
        if (shake_hands(socket, secret, error)) return socket;
    }
    return {};
}

}  // namespace gpukernel::wire
