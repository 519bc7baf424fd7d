#include "worker/calls/images.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "wire/protocol.h"
#include "wire/socket.h"

namespace gpukernel::worker {

namespace {
bool write_all(int fd, const char* from, size_t left) {
    for (ssize_t done; left; from += done, left -= done)
        if ((done = ::write(fd, from, left)) <= 0) return false;
    return true;
}

// Creates the file at `path` atomically; where one exists already, that one stays.
bool publish(const std::string& path, const char* data, size_t size) {
    const std::string fresh = path + "." + std::to_string(::getpid());
    ::unlink(fresh.c_str());
    const int fd = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0640);
    if (fd < 0) return false;
    const bool written = write_all(fd, data, size);
    ::close(fd);
    const bool there = written && (::link(fresh.c_str(), path.c_str()) == 0 || errno == EEXIST);
    ::unlink(fresh.c_str());
    return there;
}
}  // namespace

bool Images::open(const std::string& directory, bool began_anew) {
    if (began_anew) left_ = 0;
    const std::string path = directory + "/salt";
    std::array<char, 32> salt;
    for (bool tried = false;; tried = true) {
        const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            const bool read = ::read(fd, salt.data(), salt.size()) == static_cast<ssize_t>(salt.size());
            ::close(fd);
            if (!read) return false;
            directory_ = directory, salt_ = salt;
            return true;
        }
        if (tried || ::getrandom(salt.data(), salt.size(), 0) != static_cast<ssize_t>(salt.size()) ||
            !publish(path, salt.data(), salt.size()))
            return false;
    }
}

std::string Images::path_of(const wire::Digest& name) const {
    constexpr char digits[] = "0123456789abcdef";
    std::string path = directory_ + "/";
    for (uint8_t byte : name) path += {digits[byte >> 4], digits[byte & 15]};
    return path;
}

Images::Mapped::~Mapped() {
    if (data_) ::munmap(const_cast<char*>(data_), size_);
}

// The file is copied before it is checked: other workers write to the folder, too, and what was checked must
// not change, or become shorter, while it is read.
Images::Mapped Images::find(const wire::Digest& name, const std::function<bool(uint64_t)>& take,
                            bool& beyond) const {
    beyond = false;
    if (!kept()) return {};
    const std::string path = path_of(name);
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return {};
    struct stat status{};
    void* data = MAP_FAILED;
    const bool plain = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0 &&
                       static_cast<uint64_t>(status.st_size) <= MOST_BYTES / 4;
    if (plain && !take(static_cast<uint64_t>(status.st_size))) {
        ::close(fd);
        beyond = true;
        return {};
    }
    if (plain)
        data = ::mmap(nullptr, status.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool whole = false;
    if (data != MAP_FAILED) {
        off_t done = 0;
        for (ssize_t got; done < status.st_size; done += got)
            if ((got = ::read(fd, static_cast<char*>(data) + done, status.st_size - done)) <= 0) break;
        whole = done == status.st_size;
    }
    ::futimens(fd, nullptr);  // the time of its last use
    ::close(fd);
    if (data != MAP_FAILED) {
        Mapped image(data, status.st_size);
        if (whole && static_cast<const char*>(data)[status.st_size - 1] == 0 &&
            wire::equal(wire::hmac_sha256({salt_.data(), salt_.size()}, {image.view()}), name.data()))
            return image;
    }
    if (::unlink(path.c_str()) != 0)
        ::rmdir(path.c_str());  // damaged: the disk was full, the machine crashed, or somebody wrote to it
    return {};
}

bool Images::may_write(uint64_t bytes) const {
    std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> passed = now - std::exchange(left_at_, now);
    left_ = std::min(AT_ONCE, left_ + passed.count() * A_SECOND);
    if (left_ < std::min(AT_ONCE, static_cast<double>(bytes))) return false;
    left_ -= static_cast<double>(bytes);
    return true;
}

void Images::keep(std::string_view image) const {
    if (!kept() || image.size() < wire::NAMED_IMAGE || image.size() > MOST_BYTES / 4) return;
    const std::string path = path_of(wire::hmac_sha256({salt_.data(), salt_.size()}, {image}));
    if (::access(path.c_str(), F_OK) == 0 || !may_write(image.size())) return;
    publish(path, image.data(), image.size() + 1);
}

}  // namespace gpukernel::worker
