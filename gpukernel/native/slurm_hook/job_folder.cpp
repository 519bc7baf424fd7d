#include "slurm_hook/job_folder.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace gpukernel::slurm_hook {

namespace {
constexpr size_t LONGEST_FILE = 1 << 16;

std::string content(const std::string& path) {
    std::string text;
    const int file = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) return text;
    char piece[4096];
    for (ssize_t got; text.size() < LONGEST_FILE && (got = ::read(file, piece, sizeof piece)) > 0;)
        text.append(piece, static_cast<size_t>(got));
    ::close(file);
    return text;
}

// Replaces a file in one step; the folder is root's alone.
bool put(const std::string& path, const std::string& text, mode_t mode, uid_t user, gid_t group) {
    const std::string draft = path + ".new";
    ::unlink(draft.c_str());
    const int file = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0) return false;
    const bool done = ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                      (::geteuid() != 0 || ::fchown(file, user, group) == 0) && ::fchmod(file, mode) == 0;
    const int trouble = errno;
    ::close(file);
    if (done && ::rename(draft.c_str(), path.c_str()) == 0) return true;
    if (!done) errno = trouble;
    const int kept = errno;
    ::unlink(draft.c_str());
    errno = kept;
    return false;
}
}  // namespace

bool NodeFolder::exists() const { return ::access((path_ + "/jobs").c_str(), F_OK) == 0; }

std::string NodeFolder::recipe() const { return content(path_ + "/environment"); }

std::string NodeFolder::begin(const Job& job) const {
    const std::string folder = this->job(job.id), record = folder + "/job";
    const std::string text = "version 1\njob " + job.id + "\nuser " + job.user + "\ngroup " + job.group +
                             "\ncluster " + job.cluster + "\nrestart " + job.restart + "\n";
    if (content(record) == text && ::access((folder + "/over").c_str(), F_OK) != 0) return "";
    const std::string lease =
        "version 2\nlines 5\nstate none\nkernel " + job.id + "\nsocket " + path_ + "/socket\n";
    const auto number = [](const std::string& word) {
        return static_cast<unsigned>(std::strtoul(word.c_str(), nullptr, 10));
    };
    if ((::mkdir(folder.c_str(), 0711) != 0 && errno != EEXIST) ||
        !put(folder + "/lease", lease, 0600, number(job.user), number(job.group)) ||
        !put(record, text, 0600, 0, 0))
        return folder + " cannot be written: " + std::strerror(errno);
    ::unlink((folder + "/over").c_str());
    return "";
}

bool NodeFolder::end(const std::string& id) const {
    const int file = ::open((job(id) + "/over").c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0) return has(id);
    ::close(file);
    return true;
}

bool NodeFolder::has(const std::string& id) const { return ::access(job(id).c_str(), F_OK) == 0; }

bool NodeFolder::tell(const std::string& word, const std::string& id) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = path_ + "/hooks", line = word + " " + id;
    if (path.size() >= sizeof address.sun_path) return false;
    std::memcpy(address.sun_path, path.c_str(), path.size());
    const int link = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool done =
        link >= 0 && ::sendto(link, line.data(), line.size(), 0, reinterpret_cast<const sockaddr*>(&address),
                              sizeof address) == static_cast<ssize_t>(line.size());
    if (link >= 0) ::close(link);
    return done || errno == EAGAIN;  // it has many to read, and looks at all jobs now and then
}

}  // namespace gpukernel::slurm_hook
