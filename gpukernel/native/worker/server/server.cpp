#include "worker/server/server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <sstream>
#include <thread>

namespace gpukernel::worker {

namespace {
constexpr size_t MOST_CLIENTS = 128;  // connections at one time; strangers are not among them
constexpr size_t MOST_CONTROL_CLIENTS = 16;
constexpr double WATCHES = 32;  // so often does the watchdog look in the time that it allows
// For work of a program that was interrupted, or has gone while others are connected; where nobody is.
constexpr double GRACE_SECONDS = 1, GRACE_ALONE_SECONDS = 0.5;
constexpr double SILENT_SECONDS = 3;  // of a closed door; who comes later is told why it is
constexpr auto LAST_WORDS = std::chrono::milliseconds(500);       // for a GOODBYE to arrive
constexpr size_t MOST_CONTROL_LINE = 4096, MOST_OF_COMMAND = 80;  // characters
constexpr size_t MOST_NAMED = 3;                                  // programs, in one sentence

std::string quoted(std::string_view text) {
    std::string out = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
    return out + "\"";
}

std::vector<char> goodbye_frame(const std::string& sentence) {
    std::vector<char> frame;
    wire::Writer out(frame);
    out.put(wire::FrameHeader{static_cast<uint32_t>(sentence.size()), wire::GOODBYE, 0});
    out.bytes(sentence.data(), sentence.size());
    return frame;
}

double seconds_since(Clock::time_point then) {
    return std::chrono::duration<double>(Clock::now() - then).count();
}
}  // namespace

Server::Ending Server::run() {
    // Who has gone again since poll() saw them is not waited for.
    for (wire::Socket* one : {&listeners_.unix_socket, &listeners_.tcp, &listeners_.control})
        if (*one) one->blocking(false);
    lease_.attend = [this](uint64_t key) { attend(key); };
    lease_.host_functions_of = [this](uint64_t key) { return host_functions_of(key); };
    while (!stopping_) {
        // No client is accepted while the context is poisoned, nor for the time in which what a program that
        // has gone left should be over: new clients wait in the backlog and are served by the restarted
        // worker.
        const bool closed = is_closed();
        std::vector<pollfd> watched{
            {wakeup_, POLLIN, 0}, {readers_, POLLIN, 0}, {listeners_.control.fd(), POLLIN, 0}};
        for (const ControlClient& one : control_clients_) watched.push_back({one.socket.fd(), POLLIN, 0});
        const size_t first_served = watched.size();
        std::vector<std::shared_ptr<Client>> served;
        {
            std::lock_guard lock(mutex_);
            for (auto& client : clients_)
                if (!client->left) served.push_back(client);
        }
        for (auto& client : served) watched.push_back({client->channel.socket().fd(), POLLRDHUP, 0});
        const size_t first_of_doors = watched.size();
        const bool open = !closed || closed_seconds() > SILENT_SECONDS;
        admission_control_.watch(watched, listeners_.unix_socket, listeners_.tcp, open);
        const int most = closed || hang_detector_.pending_seconds() ? 100 : 1000;
        ::poll(watched.data(), watched.size(), admission_control_.pause(most));
        if (uint64_t count; watched[0].revents & POLLIN) [[maybe_unused]]
            ssize_t got = ::read(wakeup_, &count, sizeof count);
        if (watched[1].revents & POLLIN) resume_reading();
        size_t at = 3;
        for (auto it = control_clients_.begin(); it != control_clients_.end(); ++at)
            it = watched[at].revents && !answer_control(*it) ? control_clients_.erase(it) : std::next(it);
        if (watched[2].revents & POLLIN) accept_control();
        for (size_t i = 0; i < served.size(); ++i)
            if (watched[first_served + i].revents) {
                served[i]->left = Clock::now();
                std::lock_guard lock(mutex_);
                if (served[i]->session) served[i]->session->left();
            }
        // It may have closed since the check above.
        admission_control_.serve(watched, first_of_doors, open && (closed || !is_closed()));
        if (std::string why = hang_reason(); !why.empty()) {
            if (has_clients()) say_goodbye(why);
            return Ending::poisoned;
        }
        if (lease_.connections == 0 && lease_.poisoned) return Ending::poisoned;
        const double silent = std::chrono::duration<double>(Clock::now() - last_contact_).count();
        if (lease_.connections == 0 && silent > orphan_seconds_) return Ending::orphaned;
        if (validity.over()) {
            say_goodbye("its GPU server has not reached the pool for too long");
            return Ending::orphaned;
        }
    }
    return Ending::stopped;
}

// The agent has one connection and, when it starts again, another.  Only its own account may come here at
// all; the one that was silent longest goes where there are many.
void Server::accept_control() {
    const int fd = ::accept4(listeners_.control.fd(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) {
        if (control_clients_.size() >= MOST_CONTROL_CLIENTS) control_clients_.pop_front();
        control_clients_.push_back({wire::Socket(fd), {}});
    } else if (errno == EMFILE || errno == ENFILE) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the listener stays readable
    }
}

bool Server::has_room() {
    std::lock_guard lock(mutex_);
    return clients_.size() < MOST_CLIENTS;
}

// Serves a connection whose handshake is over, in a thread of its own.
void Server::admit(wire::Channel channel) {
    if (const std::string why = closed_because(); !why.empty()) {
        const std::vector<char> frame = goodbye_frame(why);
        channel.write_now(frame.data(), frame.size());
        return;
    }
    auto client = std::make_shared<Client>();
    client->channel = std::move(channel);
    {
        std::lock_guard lock(mutex_);
        client->number = ++numbers_;
        clients_.push_back(client);
    }
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setstacksize(&attributes, 1 << 20);
    ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    auto* start = new std::pair(this, client);
    pthread_t thread;
    const int failed = ::pthread_create(
        &thread, &attributes,
        [](void* argument) -> void* {
            std::unique_ptr<std::pair<Server*, std::shared_ptr<Client>>> arguments(
                static_cast<std::pair<Server*, std::shared_ptr<Client>>*>(argument));
            arguments->first->serve(arguments->second);
            return nullptr;
        },
        start);
    ::pthread_attr_destroy(&attributes);
    if (failed) {
        delete start;
        std::lock_guard lock(mutex_);
        clients_.remove(client);
    }
}

void Server::serve(std::shared_ptr<Client> client) {
    try {
        Session session(lease_, client->channel, client->writing, &client->program);
        {
            std::lock_guard lock(mutex_);
            client->session = &session;
        }
        struct Leaving {  // before the session goes
            std::mutex& mutex;
            Client& client;
            ~Leaving() {
                std::lock_guard lock(mutex);
                client.session = nullptr;
            }
        } leaving{mutex_, *client};
        session.serve();
    } catch (const std::exception&) {
        // Out of host memory for what a program sent: its connection ends, the worker does not.
    }
    {
        std::lock_guard lock(mutex_);
        clients_.remove(client);
    }
    ::eventfd_write(wakeup_, 1);  // after the last one has left a poisoned context, the worker restarts
}

void Server::say_goodbye(const std::string& sentence) {
    const std::vector<char> frame = goodbye_frame(sentence);
    struct Farewell {
        std::shared_ptr<Client> client;
        std::unique_lock<std::mutex> writing{client->writing, std::defer_lock};  // owned once it is written
    };
    std::list<Farewell> farewells;
    {
        std::lock_guard lock(mutex_);
        for (auto& client : clients_) farewells.push_back(Farewell{client});
    }
    // The frame is never written inside an answer.  An answer being written is waited for: the thread that
    // writes it may have lost its processor to the very program that it woke.  A client that does not read
    // only sees the connection end.
    for (const auto start = Clock::now();; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
        farewells.remove_if([&](Farewell& one) {
            wire::Channel& channel = one.client->channel;
            if (!one.writing.owns_lock()) {
                if (!one.writing.try_lock()) return false;
                if (!channel.write_now(frame.data(), frame.size())) return true;
            }
            return !channel.socket().on_its_way();
        });
        if (farewells.empty() || Clock::now() - start > LAST_WORDS) return;
    }
}

// For how long a program that has gone has been served still; nothing where there is none.  `alone`: nobody
// else is connected.
std::optional<double> Server::left_for(bool& alone) {
    std::lock_guard lock(mutex_);
    std::optional<double> longest;
    alone = true;
    for (auto& client : clients_) {
        if (!client->left)
            alone = false;
        else if (client->program)
            longest = std::max(longest.value_or(0), seconds_since(*client->left));
    }
    return longest;
}

bool Server::has_clients() {
    std::lock_guard lock(mutex_);
    return std::any_of(clients_.begin(), clients_.end(), [](auto& client) { return !client->left; });
}

// Whether nobody is admitted.  Others' work does not keep the door closed where the device can cancel that of
// the program that has gone.
bool Server::is_closed() {
    bool alone, closed = lease_.poisoned;
    if (const auto left = left_for(alone); left && !closed)
        closed =
            alone || *left < GRACE_SECONDS || (!lease_.cuda.end_program && hang_detector_.pending_seconds());
    if (!closed)
        closed_since_.reset();
    else if (!closed_since_)
        closed_since_ = Clock::now();
    return closed;
}

double Server::closed_seconds() const { return closed_since_ ? seconds_since(*closed_since_) : 0; }

// What a program is told that comes while the door is closed and does not open soon; empty where it is open.
std::string Server::closed_because() {
    if (!is_closed()) return "";
    std::string who;
    const std::vector<Lease::Program> programs = lease_.programs();
    for (size_t i = 0; i < programs.size() && i < MOST_NAMED; ++i) {
        std::string command = programs[i].command;
        std::replace(command.begin(), command.end(), '\0', ' ');
        command = command.substr(0, command.find_last_not_of(' ') + 1);
        for (char& c : command)  // it goes to a terminal
            if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
        if (command.size() > MOST_OF_COMMAND) command = command.substr(0, MOST_OF_COMMAND) + "...";
        who += (who.empty() ? "" : ", ") +
               (command.empty() ? std::string("a program")
                                : "process " + std::to_string(programs[i].pid) + ", '" + command + "'");
    }
    if (programs.size() > MOST_NAMED) who += " and " + std::to_string(programs.size() - MOST_NAMED) + " more";
    const std::string seconds = std::to_string(std::lround(closed_seconds())) + " s";
    if (lease_.poisoned)
        return "an error has ended the slice's context, and for " + seconds +
               " it waits for those to end that still use it (" + who +
               "); programs are served again once they have";
    return "for " + seconds + " the slice has been busy with what a program left that has ended (" + who +
           ")";
}

// The reason to end a context that programs use; empty where there is none.  Reasons are work that does not
// end after its program was interrupted or has gone, and work that takes longer than the watchdog allows.
std::string Server::hang_reason() {
    bool alone;
    const std::optional<double> left_seconds = left_for(alone);
    // A fresh context costs nobody anything where nobody is connected.
    if (left_seconds && alone && *left_seconds > GRACE_ALONE_SECONDS)
        return "a program on this slice left work that does not end, and the context ended with it";
    // Others' work would count, too, and what is cancelled needs no hang detector.
    const bool left = left_seconds && !lease_.cuda.end_program;
    // The driver may spin in a synchronisation: the watchdog looks rarely, for its time.
    const auto now = Clock::now();
    const bool look = watchdog_seconds_ > 0 && lease_.connections &&
                      std::chrono::duration<double>(now - watched_).count() > watchdog_seconds_ / WATCHES;
    if (look) watched_ = now;
    if (left || look) hang_detector_.check();
    const std::optional<double> pending = hang_detector_.pending_seconds();
    if (!pending) {
        interrupted_ = false;
        return "";
    }
    if (interrupted_ && *pending > GRACE_SECONDS)
        return "what ran on the slice was interrupted, and its context ended with it";
    if (left && *pending > GRACE_SECONDS)
        return "a program on this slice left work that does not end, and the context ended with it";
    if (watchdog_seconds_ > 0 && hang_detector_.pending_seconds_at_work() > watchdog_seconds_) {
        std::ostringstream sentence;
        sentence << "work on the slice did not end within the " << watchdog_seconds_
                 << " s that this server allows";
        return sentence.str();
    }
    return "";
}

// Serves the connection with that key, whose program has a second thread, while one of its requests waits.
void Server::attend(uint64_t key) {
    std::lock_guard lock(mutex_);
    for (auto& client : clients_)
        if (client->session && client->session->key() == key)
            client->session->serve_while_waiting(readers_, client->number);
}

std::shared_ptr<HostFunctions> Server::host_functions_of(uint64_t key) {
    std::lock_guard lock(mutex_);
    for (auto& client : clients_)
        if (client->session && client->session->key() == key) return client->session->host_functions();
    return nullptr;
}

// Passes on that something can be read from connections whose reading threads wait.
void Server::resume_reading() {
    epoll_event events[16];
    const int count = ::epoll_wait(readers_, events, std::size(events), 0);
    std::lock_guard lock(mutex_);
    for (int i = 0; i < count; ++i)
        for (auto& client : clients_)
            if (client->session && client->number == events[i].data.u64) client->session->resume_reading();
}

bool Server::answer_control(ControlClient& client) {
    char buffer[1024];
    std::string& pending = client.pending;
    const ssize_t got = ::recv(client.socket.fd(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got <= 0 || pending.size() + got > MOST_CONTROL_LINE) return false;
    pending.append(buffer, got);
    for (size_t end; (end = pending.find('\n')) != std::string::npos; pending.erase(0, end + 1)) {
        last_contact_ = Clock::now();
        const std::string answer = run_command(pending.substr(0, end)) + "\n";
        // Who does not read its answers is not waited for: programs would wait, too.
        if (::send(client.socket.fd(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
            static_cast<ssize_t>(answer.size()))
            return false;
    }
    return true;
}

std::string Server::run_command(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "status") {
        if (double until = 0; words >> until) validity.extend(until);
        return status();
    }
    if (verb == "limit") {
        uint64_t bytes = 0;
        double weight = 0;
        if (!(words >> bytes >> weight)) return R"({"ok":false,"error":"limit wants BYTES WEIGHT"})";
        if (!lease_.limit(bytes) && !limit_after_frees(bytes))  // the weight stays as it was, too
            return R"({"ok":false,"error":"more is allocated: )" + std::to_string(lease_.memory_used()) +
                   R"( bytes"})";
        lease_.time_slicing.set_weight(weight);
        return R"({"ok":true})";
    }
    if (verb == "interrupt") {
        hang_detector_.check();
        interrupted_ = true;
        return R"({"ok":true})";
    }
    if (verb == "stop") {
        std::string reason;
        std::getline(words >> std::ws, reason);
        say_goodbye(reason.empty() ? "the slice was released" : reason);
        stopping_ = true;
        return R"({"ok":true})";
    }
    return R"({"ok":false,"error":"known are status [UNTIL], limit BYTES WEIGHT, interrupt, stop REASON"})";
}

// Sets the limit once what programs have freed in stream order is back.  A stream may keep that waiting, so
// another thread gives it to the driver.
bool Server::limit_after_frees(uint64_t bytes) {
    if (!lease_.freed.any()) return false;
    std::thread([&lease = lease_] {
        lease.cuda.cuCtxSetCurrent(lease.context);
        std::lock_guard allocating(lease.allocation_mutex);
        lease.freed.flush();
        lease.freed.settle();
    }).detach();
    for (const auto end = Clock::now() + LAST_WORDS; Clock::now() < end;
         std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
        if (std::unique_lock allocating(lease_.allocation_mutex, std::try_to_lock); allocating)
            lease_.freed.settle(false);
        if (lease_.limit(bytes)) return true;
    }
    return false;
}

std::string Server::status() const {
    if (std::unique_lock allocating(lease_.allocation_mutex, std::try_to_lock);
        allocating && lease_.freed.any())
        lease_.freed.settle(false);
    std::ostringstream out;
    out << "{\"pid\":" << ::getpid() << ",\"lease\":" << quoted(lease_.id) << ",\"device\":" << lease_.device
        << ",\"memory_limit_bytes\":" << lease_.memory_limit()
        << ",\"memory_used_bytes\":" << lease_.memory_used()
        << ",\"memory_peak_bytes\":" << lease_.memory_peak()
        << ",\"host_memory_limit_bytes\":" << lease_.host_memory.limit()
        << ",\"host_memory_used_bytes\":" << lease_.host_memory.used() << ",\"cuda_calls\":" << lease_.calls
        << ",\"launches\":" << lease_.launches << ",\"gpu_seconds\":" << lease_.gpu_seconds()
        << ",\"turn_seconds\":" << lease_.time_slicing.seconds() << ",\"connections\":" << lease_.connections
        << ",\"idle_seconds\":" << lease_.idle_seconds() << ",\"endpoints\":[";
    for (size_t i = 0; i < listeners_.endpoints.size(); ++i)
        out << (i ? "," : "") << quoted(listeners_.endpoints[i]);
    out << "]}";
    return out.str();
}

}  // namespace gpukernel::worker
