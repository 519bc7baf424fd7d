#include "server.h"

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

#include "wire/hmac.h"

namespace gpukernel::worker {

namespace {
constexpr size_t MOST_GUESTS = 128;  // connections at one time, admitted or not
constexpr int HANDSHAKE_SECONDS = 5;
constexpr double GRACE_SECONDS = 1;  // for work of a program that was interrupted or has gone
constexpr auto LAST_WORDS = std::chrono::milliseconds(500);  // for a goodbye to arrive
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
    struct Client {
        int fd;
        std::string pending;
    };
    std::list<Client> control;
    while (!stopping_) {
        // A poisoned context takes nobody in, nor does one whose last program left work that may never end:
        // who knocks now waits at the door and is served by the worker that begins anew.
        const bool closed = lease_.poisoned || somebody_left();
        std::vector<pollfd> watched{{closed ? -1 : doors_.unix_socket.fd(), POLLIN, 0},
                                    {doors_.control.fd(), POLLIN, 0},
                                    {closed ? -1 : doors_.tcp.fd(), POLLIN, 0},
                                    {news_, POLLIN, 0},
                                    {readers_, POLLIN, 0}};
        for (Client& client : control) watched.push_back({client.fd, POLLIN, 0});
        std::vector<std::shared_ptr<Guest>> served;
        {
            std::lock_guard lock(mutex_);
            for (auto& guest : guests_)
                if (guest->admitted && !guest->left) served.push_back(guest);
        }
        for (auto& guest : served) watched.push_back({guest->channel.socket().fd(), POLLRDHUP, 0});
        ::poll(watched.data(), watched.size(), closed || watch_.unanswered() ? 100 : 1000);
        for (size_t door : {0, 2})
            if (watched[door].revents & POLLIN && !lease_.poisoned)  // as it may have become meanwhile
                if (int fd = ::accept4(watched[door].fd, nullptr, nullptr, SOCK_CLOEXEC); fd >= 0)
                    admit(wire::Socket(fd));
        if (uint64_t count; watched[3].revents & POLLIN) [[maybe_unused]]
            ssize_t got = ::read(news_, &count, sizeof count);
        if (watched[4].revents & POLLIN) look_up();
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
            if (int fd = ::accept4(doors_.control.fd(), nullptr, nullptr, SOCK_CLOEXEC); fd >= 0)
                control.push_back({fd, {}});
        for (size_t i = 0; i < served.size(); ++i)
            if (watched[watched.size() - served.size() + i].revents) {
                served[i]->left = Clock::now();
                std::lock_guard lock(mutex_);
                if (served[i]->session) served[i]->session->left();
            }
        if (std::string why = endless_work(); !why.empty()) {
            say_goodbye(why);
            return Ending::poisoned;
        }
        if (lease_.connections == 0 && lease_.poisoned) return Ending::poisoned;
        show_out_slow_strangers();
        const double silent = std::chrono::duration<double>(Clock::now() - last_contact_).count();
        if (lease_.connections == 0 && silent > orphan_seconds_) return Ending::orphaned;
    }
    return Ending::stopped;
}

void Server::admit(wire::Socket socket) {
    auto guest = std::make_shared<Guest>();
    guest->channel = wire::Channel(std::move(socket));
    {
        std::lock_guard lock(mutex_);
        if (guests_.size() >= MOST_GUESTS) return;
        guest->number = ++numbers_;
        guests_.push_back(guest);
    }
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setstacksize(&attributes, 1 << 20);
    ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    auto* start = new std::pair(this, guest);
    pthread_t thread;
    const int failed = ::pthread_create(
        &thread, &attributes,
        [](void* argument) -> void* {
            std::unique_ptr<std::pair<Server*, std::shared_ptr<Guest>>> arguments(
                static_cast<std::pair<Server*, std::shared_ptr<Guest>>*>(argument));
            arguments->first->host(arguments->second);
            return nullptr;
        },
        start);
    ::pthread_attr_destroy(&attributes);
    if (failed) {
        delete start;
        std::lock_guard lock(mutex_);
        guests_.remove(guest);
    }
}

void Server::host(std::shared_ptr<Guest> guest) {
    tune(guest->channel.socket());
    guest->channel.socket().timeout(HANDSHAKE_SECONDS);
    if (shake_hands(guest->channel.socket()) == wire::Admission::welcome) {
        guest->channel.socket().timeout(0);
        {
            std::lock_guard lock(mutex_);
            guest->admitted = true;
        }
        ::eventfd_write(news_, 1);  // whether it goes is watched from now on
        try {
            Session session(lease_, guest->channel, guest->writing, &guest->program);
            {
                std::lock_guard lock(mutex_);
                guest->session = &session;
            }
            struct Leaving {  // before the session goes
                std::mutex& mutex;
                Guest& guest;
                ~Leaving() {
                    std::lock_guard lock(mutex);
                    guest.session = nullptr;
                }
            } leaving{mutex_, *guest};
            session.serve();
        } catch (const std::exception&) {
            // Out of host memory for what a program sent: its connection ends, the worker does not.
        }
        {
            std::lock_guard lock(mutex_);
            guests_.remove(guest);
        }
        ::eventfd_write(news_, 1);  // the last to leave a poisoned context lets the worker begin anew at once
    } else {
        std::lock_guard lock(mutex_);
        guests_.remove(guest);
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
        std::shared_ptr<Guest> guest;
        std::unique_lock<std::mutex> writing{guest->writing, std::defer_lock};  // once it is said
    };
    std::list<Farewell> farewells;
    {
        std::lock_guard lock(mutex_);
        for (auto& guest : guests_)
            if (guest->admitted) farewells.push_back(Farewell{guest});
    }
    // No sentence lands inside an answer.  An answer's last moments are waited for: the thread that gave it
    // may have lost its processor to the very program that it woke.  Who does not read just sees its end.
    for (const auto start = Clock::now();; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
        farewells.remove_if([&](Farewell& one) {
            wire::Channel& channel = one.guest->channel;
            if (!one.writing.owns_lock()) {
                if (!one.writing.try_lock()) return false;
                if (!channel.write_now(frame.data(), frame.size())) return true;
            }
            return !channel.socket().on_its_way();
        });
        if (farewells.empty() || Clock::now() - start > LAST_WORDS) return;
    }
}

// Each read has its time limit, but a stranger may come with a byte now and then: the whole handshake has
// one.
void Server::show_out_slow_strangers() {
    std::lock_guard lock(mutex_);
    for (auto& guest : guests_)
        if (!guest->admitted && Clock::now() - guest->came > std::chrono::seconds(HANDSHAKE_SECONDS))
            guest->channel.socket().shut();
}

bool Server::somebody_left() {
    std::lock_guard lock(mutex_);
    return std::any_of(guests_.begin(), guests_.end(),
                       [](auto& guest) { return guest->left.has_value() && guest->program; });
}

// Why the context must go though programs use it, or nothing: work that does not end after its program was
// interrupted or has gone, or that takes longer than the watchdog allows.
std::string Server::endless_work() {
    const bool left = somebody_left();
    if (left || (watchdog_seconds_ > 0 && lease_.connections)) watch_.ask();
    const std::optional<double> unanswered = watch_.unanswered();
    if (!unanswered) {
        interrupted_ = false;
        return "";
    }
    if (interrupted_ && *unanswered > GRACE_SECONDS)
        return "what ran on the slice was interrupted, and its context ended with it";
    if (left && *unanswered > GRACE_SECONDS)
        return "a program on this slice left work that does not end, and the context ended with it";
    if (watchdog_seconds_ > 0 && *unanswered > watchdog_seconds_) {
        std::ostringstream sentence;
        sentence << "work on the slice did not end within the " << watchdog_seconds_
                 << " s that this server allows";
        return sentence.str();
    }
    return "";
}

// A program's second thread has come: its connection is served from now on while one of its requests waits.
void Server::attend(uint64_t key) {
    std::lock_guard lock(mutex_);
    for (auto& guest : guests_)
        if (guest->session && guest->session->key() == key)
            guest->session->be_attentive(readers_, guest->number);
}

std::shared_ptr<HostFunctions> Server::host_functions_of(uint64_t key) {
    std::lock_guard lock(mutex_);
    for (auto& guest : guests_)
        if (guest->session && guest->session->key() == key) return guest->session->host_functions();
    return nullptr;
}

// Something has come from a program whose connection waits.
void Server::look_up() {
    epoll_event events[16];
    const int count = ::epoll_wait(readers_, events, std::size(events), 0);
    std::lock_guard lock(mutex_);
    for (int i = 0; i < count; ++i)
        for (auto& guest : guests_)
            if (guest->session && guest->number == events[i].data.u64) guest->session->look_up();
}

bool Server::answer_control(int fd, std::string& pending) {
    char buffer[1024];
    const ssize_t got = ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got <= 0 || pending.size() + got > MOST_CONTROL_LINE) return false;
    pending.append(buffer, got);
    for (size_t end; (end = pending.find('\n')) != std::string::npos; pending.erase(0, end + 1)) {
        last_contact_ = Clock::now();
        const std::string answer = obey(pending.substr(0, end)) + "\n";
        if (::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(answer.size()))
            return false;
    }
    return true;
}

std::string Server::obey(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "status") return status();
    if (verb == "limit") {
        uint64_t bytes = 0;
        double weight = 0;
        if (!(words >> bytes >> weight)) return R"({"ok":false,"error":"limit wants BYTES WEIGHT"})";
        if (!lease_.limit(bytes))  // the weight stays as it was, too
            return R"({"ok":false,"error":"more is allocated: )" + std::to_string(lease_.memory_used()) +
                   R"( bytes"})";
        lease_.turns.weigh(weight);
        return R"({"ok":true})";
    }
    if (verb == "interrupt") {
        watch_.ask();
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
    return R"({"ok":false,"error":"known are status, limit BYTES WEIGHT, interrupt, stop REASON"})";
}

std::string Server::status() const {
    std::ostringstream out;
    out << "{\"pid\":" << ::getpid() << ",\"lease\":" << quoted(lease_.id) << ",\"device\":" << lease_.device
        << ",\"memory_limit_bytes\":" << lease_.memory_limit()
        << ",\"memory_used_bytes\":" << lease_.memory_used()
        << ",\"memory_peak_bytes\":" << lease_.memory_peak() << ",\"cuda_calls\":" << lease_.calls
        << ",\"launches\":" << lease_.launches << ",\"gpu_seconds\":" << lease_.gpu_seconds()
        << ",\"turn_seconds\":" << lease_.turns.seconds() << ",\"connections\":" << lease_.connections
        << ",\"idle_seconds\":" << lease_.idle_seconds() << ",\"endpoints\":[";
    for (size_t i = 0; i < doors_.endpoints.size(); ++i) out << (i ? "," : "") << quoted(doors_.endpoints[i]);
    out << "]}";
    return out.str();
}

}  // namespace gpukernel::worker
