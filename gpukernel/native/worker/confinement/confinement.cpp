#include "worker/confinement/confinement.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace gpukernel::worker {

namespace {
constexpr rlim_t MOST_DESCRIPTORS = 4096;
// Threads of one account: two for each of 128 connections, the simulated device's, and room.
constexpr rlim_t MOST_THREADS = 2048;

std::string reason() { return std::strerror(errno); }

bool lower(int resource, rlim_t most) {
    rlimit now{};
    if (::getrlimit(static_cast<__rlimit_resource>(resource), &now) != 0) return false;
    const rlim_t bound = std::min(most, now.rlim_max);
    const rlimit then{bound, bound};
    return ::setrlimit(static_cast<__rlimit_resource>(resource), &then) == 0;
}

std::string json_string(const std::string& text) {
    std::string out = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
    return out + "\"";
}
}  // namespace

bool Confinement::parse(const std::string& names) {
    std::istringstream words(names);
    for (std::string name; std::getline(words, name, ',');) {
        if (name == "no-new-privileges")
            no_new_privileges = true;
        else if (name == "limits")
            limits = true;
        else if (name == "landlock")
            landlock = true;
        else if (name == "system-calls")
            system_calls = true;
        else if (name == "real-device")
            real_device = true;
        else
            return false;
    }
    return true;
}

bool Confinement::parse_account(const std::string& text) {
    char* end = nullptr;
    const unsigned long user = std::strtoul(text.c_str(), &end, 10);
    if (*end != ':' || user == 0 || user >= 0xffffffff) return false;
    const unsigned long group = std::strtoul(end + 1, &end, 10);
    if (*end || group == 0 || group >= 0xffffffff) return false;
    account = {static_cast<uid_t>(user), static_cast<gid_t>(group)};
    return true;
}

bool Confinement::join_cgroups(std::string& error) const {
    const std::string pid = std::to_string(::getpid());
    for (const std::string& directory : cgroups) {
        const int file = ::open((directory + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC);
        const bool joined =
            file >= 0 && ::write(file, pid.data(), pid.size()) == static_cast<ssize_t>(pid.size());
        if (!joined) error = "the worker cannot join the cgroup " + directory + ": " + reason();
        if (file >= 0) ::close(file);
        if (!joined) return false;
    }
    return true;
}

bool Confinement::forgo_privileges(std::string& error) const {
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0) return true;
    error = "new privileges cannot be forgone: " + reason();
    return false;
}

bool Confinement::lower_limits(std::string& error) const {
    // Not the size of files, and not address space or data: the simulated device keeps physical memory in a
    // file without a name, and reserves twice a device's memory.
    if (lower(RLIMIT_CORE, 0) && lower(RLIMIT_NOFILE, MOST_DESCRIPTORS) && lower(RLIMIT_MSGQUEUE, 0) &&
        lower(RLIMIT_NICE, 0) && lower(RLIMIT_RTPRIO, 0) && (real_device || lower(RLIMIT_MEMLOCK, 0)))
        return true;
    error = "the limits of the process cannot be lowered: " + reason();
    return false;
}

bool Confinement::change_account(std::string& error) const {
    const auto [user, group] = *account;
    // Capabilities that the agent was started with (an ambient set) outlast a change of account by
    // themselves.
    ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    for (int capability = 0; ::prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; ++capability)
        ::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);  // where it may
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    const __user_cap_data_struct none[2] = {};
    if (::setgroups(0, nullptr) != 0 || ::setresgid(group, group, group) != 0 ||
        ::setresuid(user, user, user) != 0 || ::syscall(SYS_capset, &header, none) != 0) {
        error = "the worker cannot become the account " + std::to_string(user) + ": " + reason();
        return false;
    }
    if (::setuid(0) == 0 || ::getuid() != user || ::geteuid() != user) {
        error = "the worker could return from the account " + std::to_string(user);
        return false;
    }
    ::prctl(PR_SET_DUMPABLE, 0);  // again: a change of account may set it
    return !limits || lower(RLIMIT_NPROC, MOST_THREADS);
}

bool Confinement::enter(std::string& error) const {
    return join_cgroups(error) && (!limits || lower_limits(error)) &&
           (!no_new_privileges || forgo_privileges(error));
}

bool Confinement::close(std::string& error) const {
    std::string detail;
    return (!account || change_account(error)) && (!landlock || restrict_files(*this, detail, error)) &&
           (!system_calls || restrict_system_calls(real_device, error));
}

std::string Confinement::probe() const {
    std::string out, detail, error;
    const auto tell = [&](const char* rung, bool used) {
        out += std::string(out.empty() ? "[" : ",") + "{\"rung\":\"" + rung +
               "\",\"used\":" + (used ? "true" : "false") +
               ",\"detail\":" + json_string(used ? detail : error) + "}";
        detail.clear(), error.clear();
    };
    if (!cgroups.empty()) tell("cgroup", join_cgroups(error));
    if (limits) tell("limits", lower_limits(error));
    if (no_new_privileges) tell("no-new-privileges", forgo_privileges(error));
    if (account) tell("account", change_account(error));
    if (landlock) tell("landlock", restrict_files(*this, detail, error));
    if (system_calls) tell("system-calls", restrict_system_calls(real_device, error));
    return out + (out.empty() ? "[]" : "]");
}

}  // namespace gpukernel::worker
