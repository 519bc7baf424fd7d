#include "wire/handshake.h"

#include <sys/random.h>

#include <array>
#include <chrono>
#include <cstring>
#include <thread>

namespace gpukernel::wire {

namespace {
constexpr char ENDED[] = "its worker ended the connection";

std::string_view view(const uint8_t* data, size_t size) {
    return {reinterpret_cast<const char*>(data), size};
}

// Does the handshake of TLS.  Nothing of the program's was sent yet where it fails.
bool secure(Socket& socket, Tls& tls, std::string& error) {
    std::vector<char> out;
    std::array<char, 4096> in;
    for (size_t got = 0;;) {
        const Tls::Handshake state = tls.advance(in.data(), got, out);
        const bool sent = out.empty() || socket.write(out.data(), out.size());
        out.clear();
        if (state == Tls::Handshake::failed) {
            error = "TLS with its worker failed: " + tls.problem();
            return false;
        }
        if (state == Tls::Handshake::done && sent) return true;
        if (!sent || !(got = socket.read_some(in.data(), in.size()))) {
            error = ENDED;
            return false;
        }
    }
}

bool shake_hands(Channel& channel, const std::string& secret, std::string& error) {
    Challenge challenge;
    Proof proof{MAGIC, VERSION, {}, {}};
    Welcome welcome;
    if (!channel.read(&challenge, sizeof challenge)) return error = ENDED, false;
    error = "its worker does not speak this version of the protocol";
    if (challenge.magic != MAGIC || challenge.version != VERSION) return false;
    if (::getrandom(proof.nonce, sizeof proof.nonce, 0) != sizeof proof.nonce) return false;
    const Digest mac = proof_of("shim", secret, challenge.nonce, proof.nonce, channel);
    std::memcpy(proof.mac, mac.data(), MAC);
    if (!channel.write(&proof, sizeof proof) || !channel.read(&welcome, sizeof welcome) ||
        welcome.magic != MAGIC) {
        error = ENDED;
        return false;
    }
    if (welcome.status != Admission::welcome) {
        error = welcome.status == Admission::full ? "too many programs use this slice"
                                                  : "its worker refused the lease's secret";
        return false;
    }
    if (!equal(proof_of("worker", secret, proof.nonce, challenge.nonce, channel), welcome.mac)) {
        error = "what answers at its address is not its worker";
        return false;
    }
    return true;
}
}  // namespace

Digest proof_of(std::string_view whose, const std::string& secret, const uint8_t (&theirs)[NONCE],
                const uint8_t (&own)[NONCE], const Channel& channel) {
    return hmac_sha256(secret, {whose, view(theirs, NONCE), view(own, NONCE), channel.binding()});
}

namespace {
constexpr int TRIES = 4;
constexpr std::chrono::milliseconds FIRST_PAUSE(20), SOON(1000);

Channel try_once(const std::string& endpoint, const std::string& secret, int seconds, std::string& error) {
    Socket socket = connect_to(endpoint, seconds, error);
    if (!socket) return {};
    socket.timeout(seconds);
    std::unique_ptr<Tls> tls;
    if (endpoint.starts_with("tls:")) {
        tls = Tls::make(Tls::End::program, secret, error);
        if (!tls || !secure(socket, *tls, error)) return {};
    }
    Channel channel(std::move(socket), std::move(tls));
    if (shake_hands(channel, secret, error)) return channel;
    if (std::string problem = channel.problem(); !problem.empty()) error = problem;
    return {};
}
}  // namespace

Channel connect_to_worker(const std::vector<std::string>& endpoints, const std::string& secret, int seconds,
                          std::string& error) {
    error = "the lease names no worker";
    for (const std::string& endpoint : endpoints) {
        auto pause = FIRST_PAUSE;
        for (int tries = 1; tries <= TRIES; ++tries, pause *= 2) {
            const auto start = std::chrono::steady_clock::now();
            if (Channel channel = try_once(endpoint, secret, seconds, error)) return channel;
            // Where strangers besiege the worker, it may have ended the connection to have a place for
            // another.
            if (error != ENDED || std::chrono::steady_clock::now() - start > SOON || tries == TRIES) break;
            std::this_thread::sleep_for(pause);
        }
    }
    return {};
}

}  // namespace gpukernel::wire
