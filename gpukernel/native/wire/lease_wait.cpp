// The client of the kernel socket: asks for a lease and follows the place in the queue.
#include "wire/lease_wait.h"

#include <unistd.h>

#include <algorithm>

#include "wire/socket.h"

namespace gpukernel::wire {

namespace {
constexpr int CONNECT_SECONDS = 10;
constexpr size_t LONGEST_LINE = 4096;

// One line of the terminal or cell that overwrites itself.  It goes to stdout because it is no error, and
// front ends paint stderr red.
class ProgressLine {
  public:
    void show(const std::string& text) {
        const size_t blanks = width_ > text.size() ? width_ - text.size() : 0;
        put("\rgpukernel: " + text + std::string(blanks, ' '));
        width_ = std::max(width_, text.size());
    }
    ~ProgressLine() {
        if (width_) put("\n");
    }

  private:
    static void put(const std::string& text) {
        [[maybe_unused]] ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    }
    size_t width_ = 0;
};

bool read_line(Socket& socket, std::string& line) {
    line.clear();
    for (char c; line.size() < LONGEST_LINE && socket.read(&c, 1); line += c)
        if (c == '\n') return true;
    return false;
}
}  // namespace

// A signal does not end the wait, because its handler belongs to the program.  An interrupt of the kernel
// also reaches the lease manager, which then answers `left`.
LeaseWait wait_for_lease(const std::string& kernel_socket, const std::string& kernel, std::string& error) {
    error =
        "what asks for this slice does not answer: the Jupyter server (restart the kernel) or the node's "
        "daemon (start the program again)";
    std::string reason;
    Socket socket = connect_to("unix:" + kernel_socket, CONNECT_SECONDS, reason);
    const std::string request = "acquire " + kernel + "\n";
    if (!socket || !socket.write(request.data(), request.size())) return LeaseWait::refused;
    socket.timeout(0);
    ProgressLine progress;
    bool shown = false;
    for (std::string line; read_line(socket, line);) {
        const size_t space = line.find(' ');
        const std::string word = line.substr(0, space);
        const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
        if (word == "waiting") {
            progress.show(rest);
            shown = true;
        } else if (word == "live") {
            if (shown) progress.show("the slice is here");
            return LeaseWait::granted;
        } else if (word == "left" || word == "refused") {
            error = rest;
            return word == "left" ? LeaseWait::left : LeaseWait::refused;
        }
    }
    return LeaseWait::refused;
}

}  // namespace gpukernel::wire
