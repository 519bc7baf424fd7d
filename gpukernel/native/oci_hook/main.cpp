// The hook of the CDI file (OCI runtime specification, "POSIX-platform Hooks"), outside of the container:
//
//     gpukernel-oci-hook create start|first-use PYTHON MODEL SHARE
//     gpukernel-oci-hook remove
//
// `create` starts the container's keeper (gpukernel/engines/containers/keeper.py) in Python.  With `start` it
// waits for the keeper's word, and where that is no slice the container does not start.  With `first-use` it
// leaves a socket in the container, and waits behind it: the container starts at once, and the keeper when
// the first program that uses CUDA asks.  `remove` waits until the keeper has given the slice back.
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "oci_hook/container.h"
#include "oci_hook/image.h"
#include "oci_hook/state.h"

namespace gpukernel::oci_hook {
namespace {

constexpr size_t LONGEST_STATE = 8 << 20;
constexpr int GOODBYE_STEPS = 10000, STEP_MICROSECONDS = 1000;
constexpr char KEEPER[] = "gpukernel.engines.containers.keeper";

int complain(const std::string& trouble) {
    std::fprintf(stderr, "gpukernel: %s\n", trouble.c_str());
    return 1;
}

std::string read_all(int descriptor) {
    std::string text;
    char piece[4096];
    for (ssize_t got; text.size() < LONGEST_STATE;)
        if ((got = ::read(descriptor, piece, sizeof piece)) > 0)
            text.append(piece, static_cast<size_t>(got));
        else if (got == 0 || errno != EINTR)
            break;
    return text;
}

// The account outside of this user namespace: of a runtime without root, who is root here, the person's own.
unsigned account_outside() {
    unsigned inside = 0, outside = ::getuid();
    if (std::FILE* map = std::fopen("/proc/self/uid_map", "re")) {
        if (std::fscanf(map, "%u %u", &inside, &outside) != 2) outside = ::getuid();
        std::fclose(map);
    }
    return ::getuid() == inside ? outside : ::getuid();
}

// The folder of locks and of the log: what keepers have to say when they fail.  Root's, or the account's own
// where the runtime is not root's.
std::string own_folder() {
    const char* given = std::getenv("GPUKERNEL_CONTAINERS");
    std::string folder = given && *given ? given : "/run/gpukernel-containers";
    ::mkdir(folder.c_str(), 0700);
    if (!(given && *given) && ::access(folder.c_str(), W_OK | X_OK) != 0) {
        folder = "/run/user/" + std::to_string(account_outside()) + "/gpukernel-containers";
        ::mkdir(folder.c_str(), 0700);
    }
    return folder;
}

// Locks the file, once whoever else has it is done; tells whether it did, in ten seconds.
bool locked(int file) {
    for (int i = 0; i < GOODBYE_STEPS; ++i, ::usleep(STEP_MICROSECONDS))
        if (::flock(file, LOCK_EX | LOCK_NB) == 0) return true;
    return false;
}

// The file that a keeper locks for as long as it holds the container's slice.
std::string lock_path(const State& state) { return own_folder() + "/" + state.id; }

void keep(int descriptor) { ::fcntl(descriptor, F_SETFD, 0); }

// Waits for the first program that asks on `socket`; ends where the container's first process ends before.
void wait_for_first_use(int socket, int process) {
    pollfd states[] = {{process, POLLIN, 0}, {socket, POLLIN, 0}};
    while (::poll(states, 2, -1) < 0)
        if (errno != EINTR) ::_exit(1);
    if (states[0].revents) ::_exit(0);
}

// Becomes the keeper, with the runtime's words on standard input and no other descriptor but those that are
// kept; with a `socket`, when somebody asks there.
[[noreturn]] void become_keeper(const std::string& words, std::vector<std::string>& arguments, int socket,
                                int process) {
    ::setsid();
    const int said = ::memfd_create("state", MFD_CLOEXEC);
    const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    const int log = ::open((own_folder() + "/.log").c_str(),
                           O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (said < 0 || nothing < 0 ||
        ::write(said, words.data(), words.size()) != static_cast<ssize_t>(words.size()) ||
        ::lseek(said, 0, SEEK_SET) != 0 || ::chdir("/") != 0)
        ::_exit(1);
    ::dup2(said, 0), ::dup2(nothing, 1), ::dup2(log < 0 ? nothing : log, 2);
    if (socket >= 0) wait_for_first_use(socket, process);
    std::vector<char*> list;
    for (std::string& one : arguments) list.push_back(one.data());
    list.push_back(nullptr);
    ::execv(list[0], list.data());
    ::_exit(127);
}

int create(const std::string& words, bool first_use, char** of_keeper) {
    const auto state = parse_state(words);
    if (!state || !state->pid) return complain("the runtime's words about the container cannot be read");
    std::string trouble;
    const Folders folders = open_folders(state->pid, trouble);
    if (trouble.empty() && folders.root >= 0) trouble = image_trouble(folders.root);
    if (!trouble.empty()) return complain(trouble);
    // The folder is as new as this start of the container.
    if (::faccessat(folders.lease, "lease", F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return complain(
            "a container has one slice, and this one is given another with it: name one --device");
    const int socket = first_use ? offer_lease(folders.lease, trouble) : -1;
    if (!trouble.empty()) return complain(trouble);
    const int lock = ::open(lock_path(*state).c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    const int process = static_cast<int>(::syscall(SYS_pidfd_open, state->pid, 0));
    int pipe[2] = {-1, -1};
    if (lock < 0 || !locked(lock) || process < 0 || ::pipe2(pipe, O_CLOEXEC) != 0)
        return complain("the container's keeper cannot be started, with its lock in " + own_folder() + ": " +
                        std::strerror(errno));
    const pid_t keeper = ::fork();
    if (keeper < 0)
        return complain(std::string("the container's keeper cannot be started: ") + std::strerror(errno));
    if (keeper == 0) {
        const int given[] = {process, folders.lease, first_use ? socket : pipe[1]};
        std::vector<std::string> arguments = {
            of_keeper[0], "-P", "-m", KEEPER, first_use ? "first-use" : "start", of_keeper[1], of_keeper[2]};
        keep(lock);
        for (int descriptor : given) keep(descriptor), arguments.push_back(std::to_string(descriptor));
        become_keeper(words, arguments, first_use ? socket : -1, process);
    }
    if (first_use) return 0;
    ::close(pipe[1]);
    const std::string word = read_all(pipe[0]);
    if (word == "here") return 0;
    return complain(word.empty() ? "the keeper of the slice ended without a word" : word);
}

int remove(const std::string& words) {
    const auto state = parse_state(words);
    if (!state) return complain("the runtime's words about the container cannot be read");
    const std::string path = lock_path(*state);
    const int lock = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (lock < 0) return 0;
    locked(lock);
    ::unlink(path.c_str());
    return 0;
}

}  // namespace
}  // namespace gpukernel::oci_hook

int main(int count, char** words) {
    using namespace gpukernel::oci_hook;
    const std::string_view what = count > 1 ? words[1] : "", way = count > 2 ? words[2] : "";
    if (count == 6 && what == "create" && (way == "start" || way == "first-use"))
        return create(read_all(0), way == "first-use", words + 3);
    if (count == 2 && what == "remove") return remove(read_all(0));
    std::fprintf(
        stderr,
        "gpukernel: a hook is called with “create start|first-use PYTHON MODEL SHARE” or “remove”.\n");
    return 2;
}
