// TLS of a connection over TCP: the handshake without input and output, and reads and writes of whole
// records.
//
// The key comes from the lease's secret by HKDF (RFC 5869), and the name of the key as well: who does not
// know the secret, or has not listened, cannot name it.  The library that holds OpenSSL is loaded with the
// first of these objects; where it is missing, `make` fails with a sentence and nothing is sent as plain
// text.
//
// Guarantees: a connection that failed once stays failed.  One thread may read while another writes.  What a
// read returned was authenticated; what a failed read has left in its destination was not, and means nothing.
#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "wire/socket.h"

struct gpukernel_tls;

namespace gpukernel::wire {

class Tls {
  public:
    enum class End { worker, program };
    // nullptr, and `error` says why, where the library is missing.
    static std::unique_ptr<Tls> make(End end, const std::string& secret, std::string& error);
    ~Tls();
    Tls(const Tls&) = delete;

    // The name of the secret's key, by which a worker tells a hello that may be its lease's from any other.
    static std::string identity_of(const std::string& secret);

    // --- the handshake ---
    enum class Handshake { more, done, failed };
    // Takes what the other end sent (nothing at first, for a program) and appends what goes there to `out`.
    Handshake advance(const char* data, size_t size, std::vector<char>& out);
    // Once it is done: bytes that only the two ends of this connection know.
    std::string_view binding() const;

    // --- without waiting, by who does the reading itself ---
    void feed(const char* data, size_t size);  // what came from the other end
    // Takes `size` bytes of what was fed; false where they are not all there yet, or the connection has
    // failed.
    bool take(void* data, size_t size);

    // --- on a socket ---
    bool read(Socket& socket, void* data, size_t size);
    bool write(Socket& socket, const void* head, size_t head_size, const void* tail, size_t tail_size);
    bool write_now(Socket& socket, const void* data, size_t size);
    bool has_data();  // whether a read would return something without asking the socket

    // Why the connection is over; empty where the other end has just closed it.
    const std::string& problem() const { return problem_; }

  private:
    explicit Tls(gpukernel_tls* one);
    bool open_record(char* to, size_t room, size_t& size);
    size_t record_there() const;  // the size of the first whole record in `in_`; 0: it is not all there
    bool receive(Socket& socket, size_t wanted);
    void fail(const char* why);
    void send_alert(Socket& socket);
    void make_room(size_t bytes);

    gpukernel_tls* const one_;
    std::string problem_;
    // By the reading thread: bytes as they came, and plain text that was not asked for yet.
    std::vector<char> in_, plain_;
    size_t in_at_ = 0, in_end_ = 0, plain_at_ = 0, plain_end_ = 0;
    std::mutex sealing_;  // guards the rest
    std::vector<char> out_;
};

}  // namespace gpukernel::wire
