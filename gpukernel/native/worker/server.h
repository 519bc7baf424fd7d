// The worker's doors: programs that prove themselves, and the agent's control socket.
#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "session.h"
#include "watch.h"

namespace gpukernel::worker {

class Server {
  public:
    struct Doors {
        wire::Socket unix_socket, tcp, control;
        std::vector<std::string> endpoints;
    };
    // Work that does not end within `watchdog_seconds` ends the programs of this lease; 0: never.
    Server(Lease& lease, Doors doors, double orphan_seconds, double watchdog_seconds)
        : lease_(lease),
          doors_(std::move(doors)),
          orphan_seconds_(orphan_seconds),
          watchdog_seconds_(watchdog_seconds) {}

    enum class Ending { stopped, orphaned, poisoned };  // poisoned: the context is lost, the lease is not
    Ending run();                                       // until there is a reason to end
    Doors& doors() { return doors_; }
    void say_goodbye(const std::string& sentence);

  private:
    struct Guest {
        wire::Channel channel;
        std::mutex writing;
        bool admitted = false;
        std::atomic<bool> program{false};  // it made a call; questions about the slice are none
        Clock::time_point came = Clock::now();
        Session* session = nullptr;
        uint64_t number = 0;
        std::optional<Clock::time_point> left;  // since when its program has gone, though it is still served
    };
    void admit(wire::Socket socket);
    void host(std::shared_ptr<Guest> guest);
    wire::Admission shake_hands(wire::Socket& socket);
    void show_out_slow_strangers();
    void attend(uint64_t key);
    std::shared_ptr<HostFunctions> host_functions_of(uint64_t key);
    void look_up();
    bool somebody_left();
    std::string endless_work();
    bool answer_control(int fd, std::string& pending);
    std::string obey(const std::string& line);
    std::string status() const;

    Lease& lease_;
    Doors doors_;
    double orphan_seconds_, watchdog_seconds_;
    Watch watch_{lease_};
    bool interrupted_ = false;
    const int news_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);  // somebody came in or left
    const int readers_ = ::epoll_create1(EPOLL_CLOEXEC);         // connections whose readers wait
    uint64_t numbers_ = 0;
    std::mutex mutex_;
    std::list<std::shared_ptr<Guest>> guests_;
    bool stopping_ = false;
    Clock::time_point last_contact_ = Clock::now();
};

}  // namespace gpukernel::worker
