// The worker's doors: listeners, and the strangers that have come and not yet shown that they know the
// lease's secret.
//
// Guarantees: strangers take no place of those who were admitted, and no thread.  Each has HANDSHAKE_SECONDS.
// One account (on a unix socket) or address (over TCP) has a few places; where those are taken, or all, the
// oldest stranger goes, of the account or address that has most.  OpenSSL sees a hello only if it names this
// lease's key, which is derived from the secret, and so many of them a second.  Where descriptors run out,
// strangers go first, and then nobody is let in for a while.
//
// It is used by the server's own thread alone.  System calls: accept4, getsockopt, getpeername, fcntl,
// recvfrom, sendto, sendmsg, getrandom, ioctl, close; OpenSSL needs getrandom beside its memory (confinement
// must allow them).
#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "wire/channel.h"
#include "wire/protocol.h"

namespace gpukernel::worker {

class AdmissionControl {
  public:
    using Clock = std::chrono::steady_clock;
    // Has room for one more who was admitted?  And takes a channel whose handshake is over.
    struct House {
        std::function<bool()> has_room;
        std::function<void(wire::Channel)> admit;
    };
    // `tls`: those who come over TCP must speak TLS.
    AdmissionControl(const std::string& secret, bool tls, House house);

    // Appends what is to be watched; without `open`, strangers and those who come wait.
    void watch(std::vector<pollfd>& watched, const wire::Socket& unix_socket, const wire::Socket& tcp,
               bool open);
    // Serves what `watch` appended from `at` on.  With `open` false since, nobody is admitted.
    void serve(const std::vector<pollfd>& watched, size_t at, bool open);
    // The milliseconds after which it has something to do though nothing came; `most` where it has not.
    int pause(int most) const;

  private:
    struct Stranger {
        wire::Socket socket;
        std::string source;  // "uid 1000", "address 10.0.0.7"
        Clock::time_point since;
        bool speaks_tls = false, waits = false;  // for OpenSSL's turn
        std::unique_ptr<wire::Tls> tls;
        std::vector<char> in;
        wire::Challenge challenge;
        bool challenged = false;
    };
    enum class Step { wait, leave };  // or has gone in
    void accept_all(const wire::Socket& listener, bool tcp);
    void make_place(const std::string& source);
    Step receive(Stranger& stranger);
    Step greet(Stranger& stranger);
    Step challenge(Stranger& stranger, std::vector<char> before = {});
    Step check(Stranger& stranger, const wire::Proof& proof);
    bool send(Stranger& stranger, const void* data, size_t size);
    bool take_turn();

    const std::string& secret_;
    const std::string identity_;  // of its key
    const bool tls_;
    const House house_;
    std::list<Stranger> strangers_;  // in the order in which they came
    const wire::Socket *unix_socket_ = nullptr, *tcp_ = nullptr;
    Clock::time_point closed_until_{}, silent_until_{};
    double turns_;  // left to OpenSSL
    Clock::time_point turns_at_ = Clock::now();
};

}  // namespace gpukernel::worker
