// Landlock: the files that a worker may open, and no TCP ports (Documentation/userspace-api/landlock.rst).
#include <fcntl.h>
#include <glob.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "worker/confinement/confinement.h"

namespace gpukernel::worker {

namespace {
// The interface as of version 6, declared here: the build machine's headers may be older than the kernel that
// the worker runs on.
struct Ruleset {
    uint64_t files, ports, scopes;
};
struct [[gnu::packed]] PathRule {
    uint64_t access;
    int32_t parent;
};
constexpr int CREATE_RULESET = 444, ADD_RULE = 445, RESTRICT_SELF = 446;  // the same on all architectures
constexpr uint32_t VERSION_FLAG = 1;
constexpr int PATH_BENEATH = 1;
constexpr uint64_t EXECUTE = 1, WRITE = 2, READ = 4, LIST = 8, REMOVE = 32, MAKE = 256, TRUNCATE = 1 << 14,
                   DEVICE_IOCTL = 1 << 15;
constexpr uint64_t ALL[] = {0, (1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1};
constexpr uint64_t FOR_FILES = EXECUTE | WRITE | READ | TRUNCATE | DEVICE_IOCTL;
constexpr uint64_t BIND_AND_CONNECT = 3, ABSTRACT_SOCKETS_AND_SIGNALS = 3;

class Rules {
  public:
    Rules(int version) : files_(ALL[std::min(version, 5)]) {
        const Ruleset ruleset{files_, version >= 4 ? BIND_AND_CONNECT : 0,
                              version >= 6 ? ABSTRACT_SOCKETS_AND_SIGNALS : 0};
        const size_t known = version >= 6 ? 24 : version >= 4 ? 16 : 8;
        file_ = ::syscall(CREATE_RULESET, &ruleset, known, 0);
    }
    ~Rules() {
        if (file_ >= 0) ::close(file_);
    }
    // What is not there, or cannot be opened, needs no rule.
    void allow(const std::string& path, uint64_t access) {
        const int place = ::open(path.c_str(), O_PATH | O_CLOEXEC);
        if (place < 0) return;
        struct stat status{};
        ::fstat(place, &status);
        if (!S_ISDIR(status.st_mode)) access &= FOR_FILES;
        const PathRule rule{access & files_, place};
        if (::syscall(ADD_RULE, file_, PATH_BENEATH, &rule, 0) != 0) failed_ = errno;
        ::close(place);
    }
    bool apply() {
        if (failed_) errno = failed_;
        return file_ >= 0 && !failed_ && ::syscall(RESTRICT_SELF, file_, 0) == 0;
    }

  private:
    uint64_t files_;
    int file_ = -1, failed_ = 0;
};

std::string folder_of(const std::string& path) {
    char* real = ::realpath(path.c_str(), nullptr);
    if (!real) return "";
    const std::string found = real;
    std::free(real);
    return found.substr(0, found.rfind('/'));
}
}  // namespace

bool restrict_files(const Confinement& confinement, std::string& detail, std::string& error) {
    const long version = ::syscall(CREATE_RULESET, nullptr, 0, VERSION_FLAG);
    if (version < 1) {
        error = errno == ENOSYS       ? "this kernel has no Landlock (Linux 5.13 and newer have it)"
                : errno == EOPNOTSUPP ? "Landlock is not switched on: add it to the kernel's option lsm="
                                      : std::string("Landlock: ") + std::strerror(errno);
        return false;
    }
    Rules rules(static_cast<int>(version));
    // The restart executes this program again, by way of the dynamic linker.
    rules.allow("/proc/self/exe", EXECUTE | READ);
    const std::string own = folder_of("/proc/self/exe");  // and the library for TLS, beside it
    for (const std::string& folder : {own, own + "/../shim", own + "/../simgpu_libraries"})
        rules.allow(folder, READ);
    rules.allow("/lib64/ld-linux-x86-64.so.2", EXECUTE | READ);
    // Libraries are opened by name: their folders need not be listed.
    for (const char* folder :
         {"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache"})
        rules.allow(folder, READ);
    if (const char* path = std::getenv("LD_LIBRARY_PATH")) {
        std::istringstream folders(path);
        for (std::string folder; std::getline(folders, folder, ':');)
            if (!folder.empty()) rules.allow(folder, READ);
    }
    // Math libraries are loaded when a program first uses one.
    if (const char* path = std::getenv("GPUKERNEL_LIBRARIES")) {
        std::istringstream folders(path);
        for (std::string folder; std::getline(folders, folder, ':');)
            if (!folder.empty()) rules.allow(folder, READ);
    }
    if (const char* openblas = std::getenv("GPUKERNEL_OPENBLAS"); openblas && *openblas)
        rules.allow(folder_of(openblas), READ);
    if (confinement.library.find('/') != std::string::npos) rules.allow(folder_of(confinement.library), READ);
    for (const char* path : {"/dev/null", "/dev/urandom"}) rules.allow(path, READ | WRITE);
    rules.allow("/sys/devices/system/cpu", READ | LIST);
    // Images are found by names that only those know who have them: the folder cannot be listed.
    if (!confinement.images.empty()) rules.allow(confinement.images, READ | WRITE | MAKE | REMOVE);
    if (!confinement.time_slicing.empty()) rules.allow(confinement.time_slicing, READ | WRITE);
    // Its own file among those of the simulated devices' processes, which must be there before.
    if (!confinement.processes.empty()) {
        const std::string mine = confinement.processes + "/" + std::to_string(::getpid());
        const int file = ::open(mine.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (file >= 0) ::close(file);
        rules.allow(mine, READ | WRITE | TRUNCATE);
    }
    if (confinement.real_device) {
        glob_t found{};
        if (::glob("/dev/nvidia*", 0, nullptr, &found) == 0)
            for (size_t i = 0; i < found.gl_pathc; ++i)
                rules.allow(found.gl_pathv[i], READ | WRITE | LIST | DEVICE_IOCTL);
        ::globfree(&found);
        for (const char* path : {"/proc", "/sys", "/etc/nvidia", "/etc/localtime", "/usr/share/nvidia"})
            rules.allow(path, READ | LIST);
        // The driver names its threads, and finds no device where it may not.  A rule is as old as the inode
        // that it names, which procfs makes anew when nobody has it open: so this descriptor stays, over the
        // restart, too.
        if (::open("/proc/self/task", O_PATH | O_DIRECTORY) >= 0)
            rules.allow("/proc/self/task", READ | WRITE | LIST | TRUNCATE);
        constexpr uint64_t SHARED = READ | WRITE | LIST | MAKE | REMOVE | TRUNCATE;
        rules.allow("/dev/shm", SHARED);
        const char* const named = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
        const std::string pipes = named && *named ? named : "/tmp/nvidia-mps";
        // Anybody may have made that one, or a link from there to what workers shall not reach.
        struct stat link{}, folder{};
        const auto trusted = [](const struct stat& one) {
            return one.st_uid == 0 || one.st_uid == ::geteuid();
        };
        if (::lstat(pipes.c_str(), &link) == 0 && ::stat(pipes.c_str(), &folder) == 0 && trusted(link) &&
            trusted(folder) && S_ISDIR(folder.st_mode))
            rules.allow(pipes, SHARED);
    }
    if (!rules.apply()) {
        error = std::string("Landlock: ") + std::strerror(errno);
        return false;
    }
    detail = "version " + std::to_string(version) + (version >= 4 ? "" : ", which knows no network ports") +
             (version >= 6 ? "" : (version >= 4 ? ", which knows no signals" : " and no signals"));
    return true;
}

}  // namespace gpukernel::worker
