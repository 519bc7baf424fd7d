// The worker's server: listeners for programs, which must prove that they know the lease's secret, and for
// the agent's control connection.
#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "worker/lease/hang_detector.h"
#include "worker/server/admission_control.h"
#include "worker/server/validity.h"
#include "worker/session/session.h"

namespace gpukernel::worker {

class Server {
  public:
    // The sockets that it listens on, and the endpoints of programs in the lease file's form.
    struct Listeners {
        wire::Socket unix_socket, tcp, control;
        std::vector<std::string> endpoints;
        bool tls = false;  // whoever comes over TCP speaks TLS
    };
    // Ends when no agent has been heard of for `orphan_seconds` and no program is connected.  Work that does
    // not end within `watchdog_seconds` ends the programs of this lease; 0: never.
    Server(Lease& lease, Listeners listeners, double orphan_seconds, double watchdog_seconds)
        : lease_(lease),
          listeners_(std::move(listeners)),
          orphan_seconds_(orphan_seconds),
          watchdog_seconds_(watchdog_seconds) {}

    enum class Ending { stopped, orphaned, poisoned };  // poisoned: the context is lost, the lease is not
    Ending run();
    Listeners& listeners() { return listeners_; }
    // Ends all connections with a GOODBYE frame.
    void say_goodbye(const std::string& sentence);

  private:
    // A connection of a program, or of one that asks about the slice, from its admission on.
    struct Client {
        wire::Channel channel;
        std::mutex writing;
        std::atomic<bool> program{false};  // it sent a call that is no question
        Session* session = nullptr;
        uint64_t number = 0;
        std::optional<Clock::time_point> left;  // when its program went, while it is still served
    };
    bool has_room();
    void admit(wire::Channel channel);
    void serve(std::shared_ptr<Client> client);
    void accept_control();
    void attend(uint64_t key);
    std::shared_ptr<HostFunctions> host_functions_of(uint64_t key);
    void resume_reading();
    std::optional<double> left_for(bool& alone);
    bool has_clients();
    bool is_closed();
    double closed_seconds() const;
    std::string closed_because();
    std::string hang_reason();
    // A connection of the agent's.
    struct ControlClient {
        wire::Socket socket;
        std::string pending;
    };
    bool answer_control(ControlClient& client);
    std::string run_command(const std::string& line);
    bool limit_after_frees(uint64_t bytes);
    std::string status() const;

    Lease& lease_;
    Listeners listeners_;
    double orphan_seconds_, watchdog_seconds_;
    AdmissionControl admission_control_{
        lease_.secret,
        listeners_.tls,
        {[this] { return has_room(); }, [this](wire::Channel one) { admit(std::move(one)); }}};
    std::list<ControlClient> control_clients_;
    HangDetector hang_detector_{lease_};
    bool interrupted_ = false;                                     // by the agent
    const int wakeup_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);  // a client was admitted, or left
    const int readers_ = ::epoll_create1(EPOLL_CLOEXEC);           // connections whose reading threads wait
    uint64_t numbers_ = 0;
    std::mutex mutex_;
    std::list<std::shared_ptr<Client>> clients_;  // at most MOST_CLIENTS
    bool stopping_ = false;
    std::optional<Clock::time_point> closed_since_;
    Clock::time_point last_contact_ = Clock::now(), watched_{};
};

}  // namespace gpukernel::worker
