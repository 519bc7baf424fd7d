#include "worker/server/server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <sstream>
#include <thread>

#include "common/hmac.h"

namespace gpukernel::worker {

namespace {
constexpr size_t MOST_CLIENTS = 128;  // connections at one time, admitted or not
constexpr int HANDSHAKE_SECONDS = 5;
constexpr double WATCHES = 32;       // so often does the watchdog look in the time that it allows
constexpr double GRACE_SECONDS = 1;  // for work of a program that was interrupted or has gone
constexpr auto LAST_WORDS = std::chrono::milliseconds(500);  // for a GOODBYE to arrive
constexpr size_t MOST_CONTROL_LINE = 4096;

std::string_view view(const uint8_t* data, size_t size) {
    return {reinterpret_cast<const char*>(data), size};
}

std::string quoted(std::string_view text) {
    std::string out = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
    return out + "\"";
}
}  // namespace

Server::Ending Server::run() {
    lease_.attend = [this](uint64_t key) { attend(key); };
    lease_.host_functions_of = [this](uint64_t key) { return host_functions_of(key); };
    struct ControlClient {
        int fd;
        std::string pending;
    };
    std::list<ControlClient> control;
    while (!stopping_) {
        // No client is accepted while the context is poisoned, nor while a program that has gone left work
        // that may never end: new clients wait in the backlog and are served by the restarted worker.
        const bool closed = lease_.poisoned || program_has_left();
        std::vector<pollfd> watched{{closed ? -1 : listeners_.unix_socket.fd(), POLLIN, 0},
                                    {listeners_.control.fd(), POLLIN, 0},
                                    {closed ? -1 : listeners_.tcp.fd(), POLLIN, 0},
                                    {wakeup_, POLLIN, 0},
                                    {readers_, POLLIN, 0}};
        for (ControlClient& one : control) watched.push_back({one.fd, POLLIN, 0});
        std::vector<std::shared_ptr<Client>> served;
        {
            std::lock_guard lock(mutex_);
            for (auto& client : clients_)
                if (client->admitted && !client->left) served.push_back(client);
        }
        for (auto& client : served) watched.push_back({client->channel.socket().fd(), POLLRDHUP, 0});
        ::poll(watched.data(), watched.size(), closed || hang_detector_.pending_seconds() ? 100 : 1000);
        for (size_t listener : {0, 2})
            if (watched[listener].revents & POLLIN && !lease_.poisoned)  // since the check above
                if (int fd = ::accept4(watched[listener].fd, nullptr, nullptr, SOCK_CLOEXEC); fd >= 0)
                    accept(wire::Socket(fd));
        if (uint64_t count; watched[3].revents & POLLIN) [[maybe_unused]]
            ssize_t got = ::read(wakeup_, &count, sizeof count);
        if (watched[4].revents & POLLIN) resume_reading();
        size_t at = 5;
        for (auto it = control.begin(); it != control.end(); ++at) {
            const bool ready = watched[at].revents != 0;
            if (ready && !answer_control(it->fd, it->pending)) {
                ::close(it->fd);
                it = control.erase(it);
            } else {
                ++it;
            }
        }
        if (watched[1].revents & POLLIN)
            if (int fd = ::accept4(listeners_.control.fd(), nullptr, nullptr, SOCK_CLOEXEC); fd >= 0)
                control.push_back({fd, {}});
        for (size_t i = 0; i < served.size(); ++i)
            if (watched[watched.size() - served.size() + i].revents) {
                served[i]->left = Clock::now();
                std::lock_guard lock(mutex_);
                if (served[i]->session) served[i]->session->left();
            }
        if (std::string why = hang_reason(); !why.empty()) {
            say_goodbye(why);
            return Ending::poisoned;
        }
        if (lease_.connections == 0 && lease_.poisoned) return Ending::poisoned;
        end_slow_handshakes();
        const double silent = std::chrono::duration<double>(Clock::now() - last_contact_).count();
        if (lease_.connections == 0 && silent > orphan_seconds_) return Ending::orphaned;
        if (validity.over()) {
            say_goodbye("its GPU server has not reached the pool for too long");
            return Ending::orphaned;
        }
    }
    return Ending::stopped;
}

void Server::accept(wire::Socket socket) {
    auto client = std::make_shared<Client>();
    client->channel = wire::Channel(std::move(socket));
    {
        std::lock_guard lock(mutex_);
        if (clients_.size() >= MOST_CLIENTS) return;
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
    tune(client->channel.socket());
    client->channel.socket().timeout(HANDSHAKE_SECONDS);
    if (shake_hands(client->channel.socket()) == wire::Admission::welcome) {
        client->channel.socket().timeout(0);
        {
            std::lock_guard lock(mutex_);
            client->admitted = true;
        }
        ::eventfd_write(wakeup_, 1);  // from now on its end is watched
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
    } else {
        std::lock_guard lock(mutex_);
        clients_.remove(client);
    }
}

wire::Admission Server::shake_hands(wire::Socket& socket) {
    using namespace wire;
    Challenge challenge{MAGIC, VERSION, {}};
    Proof proof;
    if (::getrandom(challenge.nonce, NONCE, 0) != NONCE) return Admission::wrong_version;
    if (!socket.write(&challenge, sizeof challenge) || !socket.read(&proof, sizeof proof))
        return Admission::wrong_version;
    Welcome welcome{MAGIC, Admission::welcome, {}};
    const auto ours = view(challenge.nonce, NONCE), theirs = view(proof.nonce, NONCE);
    if (proof.magic != MAGIC || proof.version != VERSION)
        welcome.status = Admission::wrong_version;
    else if (!equal(hmac_sha256(lease_.secret, {"shim", ours, theirs}), proof.mac))
        welcome.status = Admission::wrong_secret;
    else {
        Digest mac = hmac_sha256(lease_.secret, {"worker", theirs, ours});
        std::memcpy(welcome.mac, mac.data(), MAC);
    }
    return socket.write(&welcome, sizeof welcome) ? welcome.status : Admission::wrong_version;
}

void Server::say_goodbye(const std::string& sentence) {
    std::vector<char> frame;
    wire::Writer out(frame);
    out.put(wire::FrameHeader{static_cast<uint32_t>(sentence.size()), wire::GOODBYE, 0});
    out.bytes(sentence.data(), sentence.size());
    struct Farewell {
        std::shared_ptr<Client> client;
        std::unique_lock<std::mutex> writing{client->writing, std::defer_lock};  // owned once it is written
    };
    std::list<Farewell> farewells;
    {
        std::lock_guard lock(mutex_);
        for (auto& client : clients_)
            if (client->admitted) farewells.push_back(Farewell{client});
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

// Each read of a handshake has a time limit, but a stranger may send a byte now and then: the whole handshake
// has a limit, too.
void Server::end_slow_handshakes() {
    std::lock_guard lock(mutex_);
    for (auto& client : clients_)
        if (!client->admitted && Clock::now() - client->accepted > std::chrono::seconds(HANDSHAKE_SECONDS))
            client->channel.socket().shut();
}

bool Server::program_has_left() {
    std::lock_guard lock(mutex_);
    return std::any_of(clients_.begin(), clients_.end(),
                       [](auto& client) { return client->left.has_value() && client->program; });
}

// The reason to end a context that programs use; empty where there is none.  Reasons are work that does not
// end after its program was interrupted or has gone, and work that takes longer than the watchdog allows.
std::string Server::hang_reason() {
    const bool left = program_has_left();
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

bool Server::answer_control(int fd, std::string& pending) {
    char buffer[1024];
    const ssize_t got = ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got <= 0 || pending.size() + got > MOST_CONTROL_LINE) return false;
    pending.append(buffer, got);
    for (size_t end; (end = pending.find('\n')) != std::string::npos; pending.erase(0, end + 1)) {
        last_contact_ = Clock::now();
        const std::string answer = run_command(pending.substr(0, end)) + "\n";
        if (::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(answer.size()))
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
