#include "wire/tls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#include "common/hmac.h"
#include "tls/tls.h"

namespace gpukernel::wire {

namespace {
constexpr size_t HEAD = 5, MORE_THAN_DATA = 22, MOST_RECORD = HEAD + GPUKERNEL_TLS_RECORD + 1 + 16 + 256;
constexpr size_t FIRST_ROOM = 32 << 10, LARGE_ROOM = 256 << 10;  // of received bytes
constexpr size_t LARGE = 64 << 10;                               // a read for which there is large room
constexpr size_t RECORDS_AT_ONCE = 8;                            // sealed, then sent

const uint8_t* bytes(const void* data) { return static_cast<const uint8_t*>(data); }
uint8_t* bytes(void* data) { return static_cast<uint8_t*>(data); }

// HKDF-SHA256 (RFC 5869) of the secret, for one purpose.
Digest derive(const std::string& secret, std::string_view purpose) {
    const Digest key = hmac_sha256("gpukernel data path", {secret});
    return hmac_sha256({reinterpret_cast<const char*>(key.data()), key.size()}, {purpose, "\1"});
}

// The functions of the library, as tls/tls.h declares them.
struct Library {
    decltype(&gpukernel_tls_new) make;
    decltype(&gpukernel_tls_free) free;
    decltype(&gpukernel_tls_handshake) handshake;
    decltype(&gpukernel_tls_rest) rest;
    decltype(&gpukernel_tls_binding) binding;
    decltype(&gpukernel_tls_error) error;
    decltype(&gpukernel_tls_seal) seal;
    decltype(&gpukernel_tls_seal_alert) seal_alert;
    decltype(&gpukernel_tls_open) open;
    std::string missing;  // why there is none
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
    return (function = reinterpret_cast<Function>(::dlsym(library, name))) != nullptr;
}

// Returns the folder of the library or program that this is linked into.
std::string own_folder() {
    Dl_info here{};
    std::string path;
    if (::dladdr(reinterpret_cast<void*>(&own_folder), &here) && here.dli_fname) path = here.dli_fname;
    char program[PATH_MAX];
    const ssize_t size = ::readlink("/proc/self/exe", program, sizeof program);
    // A program's own name is what it was started by, which may be anything.
    if (size > 0 && path.find(".so") == std::string::npos) path.assign(program, size);
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash);
}

// The library of this installation lies beside the shim.
void load(Library& library) {
    const std::string folder = own_folder(), name = "/libgpukernel-tls.so";
    void* found = nullptr;
    for (const std::string& place : {folder + name, folder + "/../shim" + name})
        if (!found && ::access(place.c_str(), R_OK) == 0)
            found = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!found) {
        library.missing =
            "this installation of gpukernel was built without TLS, which the lease asks for; install a "
            "gpukernel that "
            "was built where OpenSSL's static libraries are (Debian: libssl-dev)";
        return;
    }
    uint32_t (*interface)() = nullptr;
    if (!find(found, "gpukernel_tls_interface", interface) || interface() != GPUKERNEL_TLS_INTERFACE ||
        !find(found, "gpukernel_tls_new", library.make) || !find(found, "gpukernel_tls_free", library.free) ||
        !find(found, "gpukernel_tls_handshake", library.handshake) ||
        !find(found, "gpukernel_tls_rest", library.rest) ||
        !find(found, "gpukernel_tls_binding", library.binding) ||
        !find(found, "gpukernel_tls_error", library.error) ||
        !find(found, "gpukernel_tls_seal", library.seal) ||
        !find(found, "gpukernel_tls_seal_alert", library.seal_alert) ||
        !find(found, "gpukernel_tls_open", library.open))
        library.missing = "libgpukernel-tls.so is of another version of gpukernel; install gpukernel again";
}

// Held inside OpenSSL wherever it may take locks of its own, and by a thread that forks: a child finds them
// free.
std::mutex& inside_openssl() {
    static std::mutex& mutex = *new std::mutex;
    return mutex;
}

// Before anything else of this library or program can: of two locks, the one that is taken inside the other
// is taken later by a thread that forks, and given back earlier in the child (pthread_atfork(3)).
[[maybe_unused]] const int before_all_others = ::pthread_atfork(
    [] { inside_openssl().lock(); }, [] { inside_openssl().unlock(); }, [] { inside_openssl().unlock(); });

const Library& library() {
    static const Library& loaded = [&]() -> const Library& {
        auto* one = new Library{};
        load(*one);
        return *one;
    }();
    return loaded;
}
}  // namespace

std::string Tls::identity_of(const std::string& secret) {
    static constexpr char DIGITS[] = "0123456789abcdef";
    const Digest name = derive(secret, "tls 1.3 identity");
    std::string text;
    for (size_t i = 0; i < 16; ++i) text += DIGITS[name[i] >> 4], text += DIGITS[name[i] & 15];
    return text;
}

std::unique_ptr<Tls> Tls::make(End end, const std::string& secret, std::string& error) {
    std::lock_guard lock(inside_openssl());
    if (!library().missing.empty()) return error = library().missing, nullptr;
    const Digest key = derive(secret, "tls 1.3 psk");
    gpukernel_tls* one = library().make(end == End::worker, key.data(), identity_of(secret).c_str());
    if (!one) return error = "OpenSSL could not be used here", nullptr;
    return std::unique_ptr<Tls>(new Tls(one));
}

Tls::Tls(gpukernel_tls* one) : one_(one) {}

Tls::~Tls() {
    std::lock_guard lock(inside_openssl());
    library().free(one_);
}

std::string_view Tls::binding() const {
    return {reinterpret_cast<const char*>(library().binding(one_)), GPUKERNEL_TLS_BINDING};
}

void Tls::fail(const char* why) {
    if (problem_.empty()) problem_ = why;
}

Tls::Handshake Tls::advance(const char* data, size_t size, std::vector<char>& out) {
    std::lock_guard lock(inside_openssl());
    std::array<char, GPUKERNEL_TLS_FLIGHT> flight;
    size_t flight_size = 0;
    const int state = library().handshake(one_, bytes(data), size, bytes(flight.data()), &flight_size);
    out.insert(out.end(), flight.begin(), flight.begin() + static_cast<ptrdiff_t>(flight_size));
    if (state < 0) fail(library().error(one_));
    if (state == 1) {
        std::array<char, GPUKERNEL_TLS_HELLO> rest;
        feed(rest.data(), library().rest(one_, bytes(rest.data()), rest.size()));
    }
    return state < 0 ? Handshake::failed : state ? Handshake::done : Handshake::more;
}

// --- reading ---

void Tls::make_room(size_t wanted) {
    if (in_at_) std::memmove(in_.data(), in_.data() + in_at_, in_end_ - in_at_);
    in_end_ -= in_at_, in_at_ = 0;
    if (in_.size() < wanted) in_.resize(wanted);
}

void Tls::feed(const char* data, size_t size) {
    make_room(std::max(FIRST_ROOM, in_end_ - in_at_ + size));
    std::memcpy(in_.data() + in_end_, data, size);
    in_end_ += size;
}

size_t Tls::record_there() const {
    const size_t there = in_end_ - in_at_;
    if (there < HEAD) return 0;
    const uint8_t* head = bytes(static_cast<const void*>(in_.data() + in_at_));
    const size_t size = HEAD + (static_cast<size_t>(head[3]) << 8 | head[4]);
    return there >= std::min(size, MOST_RECORD) ? size : 0;
}

// Opens the first record: into `to` where its data fit into `room`, and into plain_ where not.  `size` is how
// much of it came into `to`.
bool Tls::open_record(char* to, size_t room, size_t& size) {
    const size_t record = record_there();
    const bool fits = record >= MORE_THAN_DATA && record - MORE_THAN_DATA <= room;
    if (!fits && plain_.empty()) plain_.resize(MOST_RECORD);
    size = 0;
    const long opened = record > MOST_RECORD ? -1
                                             : library().open(one_, bytes(in_.data() + in_at_), record,
                                                              bytes(fits ? to : plain_.data()));
    if (opened < 0) return fail(record > MOST_RECORD ? "what came is no TLS" : library().error(one_)), false;
    in_at_ += record;
    if (fits)
        size = static_cast<size_t>(opened);
    else
        plain_at_ = 0, plain_end_ = static_cast<size_t>(opened);
    return true;
}

bool Tls::take(void* data, size_t size) {
    while (plain_end_ - plain_at_ < size) {
        if (!problem_.empty() || !record_there()) return false;
        if (plain_at_ != plain_end_)
            return fail("what came is against the protocol"), false;  // in two records
        size_t direct = 0;
        if (!open_record(nullptr, 0, direct)) return false;
    }
    std::memcpy(data, plain_.data() + plain_at_, size);
    plain_at_ += size;
    return true;
}

// Waits for more from the socket.  At least `wanted` bytes of data are to come, so that many are waited for
// in one call, and the thread is not woken for every packet.
bool Tls::receive(Socket& socket, size_t wanted) {
    make_room(wanted >= LARGE ? LARGE_ROOM : FIRST_ROOM);
    const size_t room = in_.size() - in_end_, there = in_end_;
    const size_t surely =
        wanted >= LARGE ? std::min(room, wanted + MORE_THAN_DATA - std::min(there, wanted)) : 0;
    const size_t got = surely >= LARGE ? socket.read_much(in_.data() + in_end_, surely)
                                       : socket.read_some(in_.data() + in_end_, room);
    in_end_ += got;
    return got > 0;
}

bool Tls::read(Socket& socket, void* data, size_t size) {
    for (char* to = static_cast<char*>(data); size;) {
        if (plain_at_ < plain_end_) {
            const size_t piece = std::min(size, plain_end_ - plain_at_);
            std::memcpy(to, plain_.data() + plain_at_, piece);
            plain_at_ += piece, to += piece, size -= piece;
            continue;
        }
        if (!problem_.empty()) return false;
        size_t direct = 0;
        if (!record_there()) {
            if (!receive(socket, size)) return false;
        } else if (!open_record(to, size, direct)) {
            send_alert(socket);
            return false;
        }
        to += direct, size -= direct;
    }
    return true;
}

bool Tls::has_data() { return plain_at_ < plain_end_ || record_there() || !problem_.empty(); }

// --- writing ---

bool Tls::write(Socket& socket, const void* head, size_t head_size, const void* tail, size_t tail_size) {
    std::lock_guard lock(sealing_);
    const char *first = static_cast<const char*>(head), *second = static_cast<const char*>(tail);
    while (head_size || tail_size) {
        size_t sealed = 0;
        for (size_t records = 0; records < RECORDS_AT_ONCE && (head_size || tail_size); ++records) {
            const size_t one = std::min(head_size, GPUKERNEL_TLS_RECORD);
            const size_t two = std::min(tail_size, GPUKERNEL_TLS_RECORD - one);
            if (out_.size() < sealed + one + two + GPUKERNEL_TLS_MORE)
                out_.resize(sealed + one + two + GPUKERNEL_TLS_MORE);
            const size_t size =
                library().seal(one_, bytes(first), one, bytes(second), two, bytes(out_.data() + sealed));
            if (!size) return false;
            sealed += size;
            first += one, head_size -= one, second += two, tail_size -= two;
        }
        if (!socket.write(out_.data(), sealed)) return false;
    }
    return true;
}

bool Tls::write_now(Socket& socket, const void* data, size_t size) {
    std::lock_guard lock(sealing_);
    if (size > GPUKERNEL_TLS_RECORD) return false;
    out_.resize(std::max(out_.size(), size + GPUKERNEL_TLS_MORE));
    const size_t sealed = library().seal(one_, bytes(data), size, nullptr, 0, bytes(out_.data()));
    return sealed && ::send(socket.fd(), out_.data(), sealed, MSG_DONTWAIT | MSG_NOSIGNAL) ==
                         static_cast<ssize_t>(sealed);
}

// Tells the other end why the connection ends, where no other thread is just writing.
void Tls::send_alert(Socket& socket) {
    const std::unique_lock lock(sealing_, std::try_to_lock);
    std::array<char, GPUKERNEL_TLS_MORE> alert;
    if (!lock.owns_lock()) return;
    const size_t size = library().seal_alert(one_, bytes(alert.data()));
    [[maybe_unused]] const ssize_t sent =
        ::send(socket.fd(), alert.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace gpukernel::wire
