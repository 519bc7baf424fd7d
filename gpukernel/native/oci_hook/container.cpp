#include "oci_hook/container.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

namespace gpukernel::oci_hook {

namespace {
constexpr int WAITING_CALLS = 16;

// As /proc/PID/mountinfo has a path: blanks and the like are three octal figures behind a backslash.
std::string plain(const std::string& escaped) {
    std::string path;
    for (size_t i = 0; i < escaped.size(); ++i)
        if (escaped[i] == '\\' && i + 3 < escaped.size()) {
            path += static_cast<char>(std::stoi(escaped.substr(i + 1, 3), nullptr, 8));
            i += 3;
        } else {
            path += escaped[i];
        }
    return path;
}

// The path of the mount that the container will see at LEASE_FOLDER, in the mounts of `pid`; the last one,
// which hides others.  Where a link of the image was followed when it was mounted, it may have another name
// before the last "/gpukernel".
std::string mounted_at(int pid) {
    std::ifstream lines("/proc/" + std::to_string(pid) + "/mountinfo");
    std::string usual, other;
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string skipped, path, word, kind;
        words >> skipped >> skipped >> skipped >> skipped >> path >> word;
        while (words && word != "-") words >> word;
        words >> kind;
        if (kind != "tmpfs") continue;
        if (path.ends_with(LEASE_FOLDER))
            usual = plain(path);
        else if (path.ends_with("/gpukernel"))
            other = plain(path);
    }
    return usual.empty() ? other : usual;
}

std::string because(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

// Calls `make`, which makes a file in `folder` and returns a negative number with errno where it cannot.  A
// file system that was mounted in a user namespace takes no new file of an account that is none there, as
// root outside is none: then once more as the folder's owner.
template <typename Make>
int make_inside(int folder, Make make) {
    const int made = make();
    struct stat about{};
    if (made >= 0 || errno != EOVERFLOW || ::fstat(folder, &about) != 0) return made;
    const int group = ::setfsgid(about.st_gid), user = ::setfsuid(about.st_uid);
    const int again = make(), trouble = errno;
    ::setfsuid(static_cast<uid_t>(user)), ::setfsgid(static_cast<gid_t>(group));
    errno = trouble;
    return again;
}
}  // namespace

Folders open_folders(int pid, std::string& trouble) {
    const std::string path = mounted_at(pid);
    if (path.empty()) {
        trouble = std::string("the runtime has not mounted ") + LEASE_FOLDER + " in the container";
        return {};
    }
    const int all =
        ::open(("/proc/" + std::to_string(pid) + "/root").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    const auto open = [all](const std::string& name, int flags) {
        open_how how{};
        how.flags = static_cast<unsigned>(flags | O_DIRECTORY | O_CLOEXEC);
        how.resolve = RESOLVE_NO_SYMLINKS;
        return all < 0 ? -1 : static_cast<int>(::syscall(SYS_openat2, all, name.c_str(), &how, sizeof how));
    };
    Folders found;
    found.lease = open(path.substr(1), O_RDONLY);
    struct statfs about{};
    if (found.lease < 0 || ::fstatfs(found.lease, &about) != 0)
        trouble = because("the container's files cannot be reached");
    else if (about.f_type != TMPFS_MAGIC)
        trouble =
            std::string(LEASE_FOLDER) + " in the container is not the file system in memory of the CDI file";
    const size_t length = path.size() - std::min(path.size(), sizeof LEASE_FOLDER - 1);
    if (length > 1 && path.ends_with(LEASE_FOLDER)) found.root = open(path.substr(1, length - 1), O_PATH);
    if (all >= 0) ::close(all);
    return found;
}

int offer_lease(int folder, std::string& trouble) {
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/socket", folder);
    const auto bind = [&] { return ::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address); };
    if (socket < 0 || make_inside(folder, bind) != 0 || ::listen(socket, WAITING_CALLS) != 0 ||
        ::fchmodat(folder, "socket", 0666, 0) != 0) {  // the container's own programs alone see it
        trouble = because("the socket in the container cannot be made");
        return -1;
    }
    // gpukernel/remoting/lease_file.py describes the file; there is no secret in this one.
    const std::string text =
        std::string("version 2\nlines 5\nstate none\nkernel container\nsocket ") + LEASE_FOLDER + "/socket\n";
    const int file = make_inside(folder, [folder] {
        return ::openat(folder, "lease", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    });
    if (file < 0 || ::fchmod(file, 0644) != 0 ||
        ::write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
        trouble = because("the lease file in the container cannot be written");
        return -1;
    }
    ::close(file);
    return socket;
}

}  // namespace gpukernel::oci_hook
