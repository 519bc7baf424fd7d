#include "wire/handshake.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace gpukernel::wire {

namespace {
constexpr char ENDED[] = "its worker ended the connection";

// Why nothing could be read from or written to the worker within the socket's time.
std::string silence(int seconds, const char* when) {
    if (errno != EAGAIN && errno != EWOULDBLOCK) return ENDED;
    return "its worker has not answered for " + std::to_string(seconds) + " s " + when +
           ": it may be making a fresh context, or its machine has too much to do";
}

std::string_view view(const uint8_t* data, size_t size) {
    return {reinterpret_cast<const char*>(data), size};
}

// Does the handshake of TLS.  Nothing of the program's was sent yet where it fails.
bool secure(Socket& socket, Tls& tls, int seconds, std::string& error) {
    std::vector<char> out;
    std::array<char, 4096> in;
    for (size_t got = 0;;) {
        const Tls::Handshake state = tls.advance(in.data(), got, out);
        errno = 0;
        const bool sent = out.empty() || socket.write(out.data(), out.size());
        out.clear();
        if (state == Tls::Handshake::failed) {
            error = "TLS with its worker failed: " + tls.problem();
            return false;
        }
        if (state == Tls::Handshake::done && sent) return true;
        if (!sent || !(got = socket.read_some(in.data(), in.size()))) {
            error = silence(seconds, "in the handshake of TLS");
            return false;
        }
    }
}

bool shake_hands(Channel& channel, const std::string& secret, int seconds, std::string& error) {
    Challenge challenge;
    Proof proof{MAGIC, VERSION, {}, {}};
    Welcome welcome;
    errno = 0;
    if (!channel.read(&challenge, sizeof challenge))
        return error = silence(seconds, "to a connection that waits to be let in"), false;
    if (challenge.magic != MAGIC) return error = "what answers at its address is no worker", false;
    const auto versions = [&] {
        return "its worker speaks version " + std::to_string(challenge.version) +
               " of the protocol, and this program's libcuda version " + std::to_string(VERSION) +
               ": install the same version of gpukernel on both sides";
    };
    if (challenge.version != VERSION) return error = versions(), false;
    if (::getrandom(proof.nonce, sizeof proof.nonce, 0) != sizeof proof.nonce)
        return error = "the system gives no random numbers", false;
    const Digest mac = proof_of("shim", secret, challenge.nonce, proof.nonce, channel);
    std::memcpy(proof.mac, mac.data(), MAC);
    errno = 0;
    if (!channel.write(&proof, sizeof proof) || !channel.read(&welcome, sizeof welcome) ||
        welcome.magic != MAGIC) {
        error = silence(seconds, "to the proof of the lease's secret");
        return false;
    }
    if (welcome.status != Admission::welcome) {
        error = welcome.status == Admission::full            ? "too many programs use this slice"
                : welcome.status == Admission::wrong_version ? versions()
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
        if (!tls || !secure(socket, *tls, seconds, error)) return {};
    }
    Channel channel(std::move(socket), std::move(tls));
    if (shake_hands(channel, secret, seconds, error)) return channel;
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
