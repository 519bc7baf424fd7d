#include "worker/server/admission_control.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>

#include "wire/handshake.h"

namespace gpukernel::worker {

namespace {
constexpr size_t MOST_STRANGERS = 192, MOST_OF_ONE = 64;  // of one account or address
constexpr auto HANDSHAKE_SECONDS = std::chrono::seconds(5);
constexpr int ACCEPTED_AT_ONCE = 16;  // before it is seen who has gone again, and others are served
constexpr double HELLOS_A_SECOND = 200, HELLOS_AT_ONCE = 50;
constexpr size_t MOST_HELLO = 4096;
constexpr auto CLOSED_TIME = std::chrono::milliseconds(200);  // where descriptors ran out
constexpr auto COMPLAINT_TIME = std::chrono::minutes(1);      // between two lines of the log
constexpr size_t RECORD_HEAD = 5;
constexpr uint8_t TLS_HANDSHAKE = 22;
constexpr char UNKNOWN_IDENTITY[] = {21, 3, 3, 0, 2, 2, 115};  // a fatal alert (RFC 8446 section 6.2)

// Who is at the other end, as far as the system knows.
std::string source_of(int fd, bool tcp) {
    if (!tcp) {
        ucred peer{};
        socklen_t size = sizeof peer;
        return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0
                   ? "uid " + std::to_string(peer.uid)
                   : "nobody";
    }
    sockaddr_storage name{};
    socklen_t size = sizeof name;
    char text[INET6_ADDRSTRLEN] = "";
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return "nobody";
    if (name.ss_family == AF_INET6) {
        in6_addr address = reinterpret_cast<sockaddr_in6*>(&name)->sin6_addr;
        // Whoever has one address of a network of IPv6 has all of it.
        if (!IN6_IS_ADDR_V4MAPPED(&address)) std::memset(address.s6_addr + 8, 0, 8);
        ::inet_ntop(AF_INET6, &address, text, sizeof text);
    } else {
        ::inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(&name)->sin_addr, text, sizeof text);
    }
    return std::string("address ") + text;
}
}  // namespace

AdmissionControl::AdmissionControl(const std::string& secret, bool tls, House house)
    : secret_(secret),
      identity_(wire::Tls::identity_of(secret)),
      tls_(tls),
      house_(std::move(house)),
      turns_(HELLOS_AT_ONCE) {}

void AdmissionControl::watch(std::vector<pollfd>& watched, const wire::Socket& unix_socket,
                             const wire::Socket& tcp, bool open) {
    unix_socket_ = &unix_socket, tcp_ = &tcp;
    const bool lets_in = open && Clock::now() >= closed_until_;
    for (const wire::Socket* listener : {&unix_socket, &tcp})
        watched.push_back({lets_in ? listener->fd() : -1, POLLIN, 0});
    for (const Stranger& one : strangers_)
        watched.push_back({open ? one.socket.fd() : -1, static_cast<short>(one.waits ? 0 : POLLIN), 0});
}

int AdmissionControl::pause(int most) const {
    for (const Stranger& one : strangers_)
        if (one.waits) return std::min(most, 10);
    return Clock::now() < closed_until_ ? std::min(most, 100) : most;
}

void AdmissionControl::serve(const std::vector<pollfd>& watched, size_t at, bool open) {
    const size_t listeners = at;
    at += 2;
    const auto now = Clock::now();
    for (auto it = strangers_.begin(); it != strangers_.end(); ++at) {
        const bool ready = watched[at].revents || it->waits;
        Step step = ready && open ? receive(*it) : Step::wait;
        if (step == Step::wait && now - it->since > HANDSHAKE_SECONDS) step = Step::leave;
        it = step == Step::wait ? std::next(it) : strangers_.erase(it);
    }
    if (!open) return;
    if (watched[listeners].revents & POLLIN) accept_all(*unix_socket_, false);
    if (watched[listeners + 1].revents & POLLIN) accept_all(*tcp_, true);
}

void AdmissionControl::accept_all(const wire::Socket& listener, bool tcp) {
    for (int count = 0; count < ACCEPTED_AT_ONCE; ++count) {
        const int fd = ::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
            if (!strangers_.empty()) {
                strangers_.pop_front();
                continue;
            }
            closed_until_ = Clock::now() + CLOSED_TIME;
            if (Clock::now() >= silent_until_) {
                silent_until_ = Clock::now() + COMPLAINT_TIME;
                std::fprintf(stderr, "no connection can be accepted: %s\n", std::strerror(errno));
            }
            return;
        }
        Stranger one;
        one.socket = wire::Socket(fd), one.source = source_of(fd, tcp);
        one.since = Clock::now(), one.speaks_tls = tcp && tls_;
        make_place(one.source);
        if (one.speaks_tls || challenge(one) == Step::wait) strangers_.push_back(std::move(one));
    }
}

// Has the oldest go where there are too many: of the newcomer's own source, or of the one that has most.  Who
// has named this lease's key goes after those who have not.
void AdmissionControl::make_place(const std::string& source) {
    if (strangers_.size() < MOST_OF_ONE) return;
    std::map<std::string, size_t> counts;
    for (const Stranger& one : strangers_) ++counts[one.source];
    std::string whose = source;
    if (counts[source] < MOST_OF_ONE) {
        if (strangers_.size() < MOST_STRANGERS) return;
        whose = std::max_element(counts.begin(), counts.end(), [](auto& a, auto& b) {
                    return a.second < b.second;
                })->first;
    }
    auto goes = strangers_.end();
    for (auto it = strangers_.begin(); it != strangers_.end(); ++it)
        if (it->source == whose && (goes == strangers_.end() || (goes->tls && !it->tls))) goes = it;
    if (goes != strangers_.end()) strangers_.erase(goes);
}

bool AdmissionControl::take_turn() {
    const auto now = Clock::now();
    const double passed = std::chrono::duration<double>(now - turns_at_).count();
    turns_ = std::min(HELLOS_AT_ONCE, turns_ + passed * HELLOS_A_SECOND), turns_at_ = now;
    if (turns_ < 1) return false;
    --turns_;
    return true;
}

// Reads what has come and takes the handshake as far as that goes.
AdmissionControl::Step AdmissionControl::receive(Stranger& stranger) {
    char bytes[MOST_HELLO];
    size_t most = sizeof bytes;
    // Without TLS what follows the proof is left to the session, which reads the socket itself.
    if (!stranger.speaks_tls) most = sizeof(wire::Proof) - stranger.in.size();
    const ssize_t got = ::recv(stranger.socket.fd(), bytes, most, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return Step::leave;
    const size_t size = got > 0 ? static_cast<size_t>(got) : 0;
    wire::Proof proof;
    if (!stranger.speaks_tls) {
        stranger.in.insert(stranger.in.end(), bytes, bytes + size);
        if (stranger.in.size() < sizeof proof) return Step::wait;
        std::memcpy(&proof, stranger.in.data(), sizeof proof);
        return check(stranger, proof);
    }
    if (!stranger.tls) {
        stranger.in.insert(stranger.in.end(), bytes, bytes + size);
        return greet(stranger);
    }
    if (!stranger.challenged) {
        std::vector<char> out;
        const auto state = stranger.tls->advance(bytes, size, out);
        if (state == wire::Tls::Handshake::done) return challenge(stranger, std::move(out));
        if (!send(stranger, out.data(), out.size()) || state == wire::Tls::Handshake::failed)
            return Step::leave;
        return Step::wait;
    }
    stranger.tls->feed(bytes, size);
    if (stranger.tls->take(&proof, sizeof proof)) return check(stranger, proof);
    return stranger.tls->problem().empty() && size < sizeof bytes ? Step::wait : Step::leave;
}

// The first flight of TLS: OpenSSL sees it only where it is whole and names this lease's key.
AdmissionControl::Step AdmissionControl::greet(Stranger& stranger) {
    const std::vector<char>& in = stranger.in;
    if (!in.empty() && static_cast<uint8_t>(in[0]) != TLS_HANDSHAKE) return Step::leave;
    if (in.size() < RECORD_HEAD) return Step::wait;
    const size_t length = static_cast<size_t>(static_cast<uint8_t>(in[3])) << 8 | static_cast<uint8_t>(in[4]);
    if (RECORD_HEAD + length > MOST_HELLO || in.size() > MOST_HELLO) return Step::leave;
    if (in.size() < RECORD_HEAD + length) return Step::wait;
    if (!::memmem(in.data(), in.size(), identity_.data(), identity_.size())) {
        send(stranger, UNKNOWN_IDENTITY, sizeof UNKNOWN_IDENTITY);
        return Step::leave;
    }
    stranger.waits = !take_turn();
    if (stranger.waits) return Step::wait;
    std::string error;
    std::vector<char> out;
    if (!(stranger.tls = wire::Tls::make(wire::Tls::End::worker, secret_, error))) return Step::leave;
    const auto state = stranger.tls->advance(in.data(), in.size(), out);
    return send(stranger, out.data(), out.size()) && state == wire::Tls::Handshake::more ? Step::wait
                                                                                         : Step::leave;
}

AdmissionControl::Step AdmissionControl::challenge(Stranger& stranger, std::vector<char> before) {
    stranger.challenge = {wire::MAGIC, wire::VERSION, {}};
    stranger.challenged = true;
    if (::getrandom(stranger.challenge.nonce, wire::NONCE, 0) != wire::NONCE) return Step::leave;
    if (!before.empty() && !send(stranger, before.data(), before.size())) return Step::leave;
    const bool sent = stranger.tls ? stranger.tls->write_now(stranger.socket, &stranger.challenge,
                                                             sizeof stranger.challenge)
                                   : send(stranger, &stranger.challenge, sizeof stranger.challenge);
    return sent ? Step::wait : Step::leave;
}

AdmissionControl::Step AdmissionControl::check(Stranger& stranger, const wire::Proof& proof) {
    using namespace wire;
    Channel channel(std::move(stranger.socket), std::move(stranger.tls));
    Welcome welcome{MAGIC, Admission::welcome, {}};
    if (proof.magic != MAGIC || proof.version != VERSION)
        welcome.status = Admission::wrong_version;
    else if (!equal(proof_of("shim", secret_, stranger.challenge.nonce, proof.nonce, channel), proof.mac))
        welcome.status = Admission::wrong_secret;
    else if (!house_.has_room())
        welcome.status = Admission::full;
    if (welcome.status == Admission::welcome) {
        const Digest mac = proof_of("worker", secret_, proof.nonce, stranger.challenge.nonce, channel);
        std::memcpy(welcome.mac, mac.data(), MAC);
    }
    if (!channel.write_now(&welcome, sizeof welcome) || welcome.status != Admission::welcome)
        return Step::leave;
    channel.socket().blocking(true);
    wire::tune(channel.socket());
    house_.admit(std::move(channel));
    return Step::leave;
}

// Sends a few bytes, for which a new connection has room.
bool AdmissionControl::send(Stranger& stranger, const void* data, size_t size) {
    return !size || ::send(stranger.socket.fd(), data, size, MSG_DONTWAIT | MSG_NOSIGNAL) ==
                        static_cast<ssize_t>(size);
}

}  // namespace gpukernel::worker
