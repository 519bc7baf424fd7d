#include "simgpu/driver/modules/printed_text.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace gpukernel::simgpu {

namespace {
constexpr size_t STEP = size_t{64} << 10;  // of the charge
constexpr size_t PARTS = 8 << 10;          // of a pipe's pages, which the last writes before did not fill

size_t room_in(int file) {
    const int flags = ::fcntl(file, F_GETFL), size = ::fcntl(file, F_GETPIPE_SZ);
    int there = 0;
    if (flags < 0 || !(flags & O_NONBLOCK) || size <= 0 || ::ioctl(file, FIONREAD, &there) != 0)
        return SIZE_MAX;
    const size_t taken = static_cast<size_t>(there) + PARTS;
    return static_cast<size_t>(size) - std::min(taken, static_cast<size_t>(size));
}
}  // namespace

void PrintedText::keep_newest(size_t bytes) {
    if (text_.size() > bytes)
        text_.erase(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(text_.size() - bytes));
}

void PrintedText::add(std::string_view text, size_t buffer) {
    std::lock_guard lock(mutex_);
    size_t most = std::min(buffer, MOST);
    const size_t all = std::min(text_.size() + text.size(), most);
    // Without room the buffer stays as large as it is.
    if (!share_.grow((all + STEP - 1) / STEP * STEP)) most = std::min<size_t>(most, share_.bytes());
    if (text.size() > most) text.remove_prefix(text.size() - most);
    keep_newest(most - text.size());
    text_.insert(text_.end(), text.begin(), text.end());
}

void PrintedText::write_to(int file, size_t more) {
    std::unique_lock lock(mutex_);
    if (text_.empty()) return;
    std::deque<char> text;  // which allocates even where it is empty
    HostShare share;
    text.swap(text_), std::swap(share, share_);
    lock.unlock();
    const size_t room = room_in(file), most = room - std::min(room, more);
    char piece[16384];
    for (auto at = text.begin() + static_cast<std::ptrdiff_t>(text.size() - std::min(text.size(), most));
         at != text.end();) {
        const auto bytes = std::min<std::ptrdiff_t>(sizeof piece, text.end() - at);
        std::copy_n(at, bytes, piece);
        const ssize_t written = ::write(file, piece, static_cast<size_t>(bytes));
        if (written <= 0) break;
        at += written;
    }
}

}  // namespace gpukernel::simgpu
