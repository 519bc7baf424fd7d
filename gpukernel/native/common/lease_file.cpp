#include "common/lease_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <system_error>

namespace gpukernel::wire {

namespace {
constexpr size_t MOST_BYTES = 1 << 16;
constexpr std::string_view OF_SLURM = "slurm:";
constexpr const char* AGAIN = "; start the program or the kernel again";

// Version 1 (gpukernel 0.1) called two keys differently.
std::string key_of_version_2(const std::string& key) {
    if (key == "desk") return "socket";
    if (key == "key") return "kernel";
    return key;
}

// Returns the bytes of a regular file of at most MOST_BYTES, and never waits for more; else sets `problem`.
std::string content_of(const char* path, std::string& problem) {
    const auto because = [] { return "cannot be read: " + std::generic_category().message(errno); };
    const int file = ::open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) return problem = because(), "";
    struct stat facts{};
    std::string content(MOST_BYTES + 1, 0);
    size_t size = 0;
    if (::fstat(file, &facts) != 0)
        problem = because();
    else if (!S_ISREG(facts.st_mode))
        problem = "cannot be read: it is no regular file";
    while (problem.empty() && size < content.size()) {
        const ssize_t more = ::read(file, content.data() + size, content.size() - size);
        if (more == 0) break;
        if (more > 0)
            size += static_cast<size_t>(more);
        else if (errno != EINTR)
            problem = because();
    }
    ::close(file);
    if (problem.empty() && size > MOST_BYTES)
        problem = "cannot be read: it is larger than " + std::to_string(MOST_BYTES) + " bytes";
    content.resize(size);
    return content;
}

void take(const std::string& line, bool version_1, LeaseFile& lease) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    if (version_1) key = key_of_version_2(key);
    if (key == "secret") words >> lease.secret;
    if (key == "driver") std::getline(words >> std::ws, lease.driver);
    if (key == "lease") words >> lease.lease;
    if (key == "state") words >> lease.state;
    if (key == "kernel") words >> lease.kernel;
    if (key == "socket") std::getline(words >> std::ws, lease.socket);
    if (key == "reason") std::getline(words >> std::ws, lease.reason);
    if (key == "device") {
        std::vector<std::string> endpoints;
        int number;
        words >> number;
        for (std::string endpoint; words >> endpoint;) endpoints.push_back(endpoint);
        lease.devices.push_back(std::move(endpoints));
    }
}

// Whether a file that does not say how many lines it has has those that every file of its state has.
bool whole(const LeaseFile& lease) {
    if (lease.state == "none") return !lease.kernel.empty() && !lease.socket.empty();
    return !lease.state.empty() && lease.kernel.empty() == lease.socket.empty() &&
           (lease.state != "live" || !lease.devices.empty());
}

// Returns what is wrong with the file, or nothing.
std::string parse(const std::string& content, LeaseFile& lease) {
    const std::string cut_off = std::string("is cut off or damaged") + AGAIN;
    if (content.empty()) return std::string("is empty") + AGAIN;
    if (content.back() != '\n') return cut_off;
    std::vector<std::string> lines;
    std::istringstream text(content);
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    const bool version_1 = lines[0] == "version 1";
    if (!version_1 && lines[0] != "version 2") {
        const std::string key = "version ";
        const std::string version = lines[0].starts_with(key) ? lines[0].substr(key.size(), 20) : "";
        return "has version '" + version +
               "', and this gpukernel reads versions 1 and 2: start the program or the kernel again with one "
               "version of gpukernel";
    }
    for (size_t i = 1; i < lines.size(); ++i) take(lines[i], version_1, lease);
    if (lines.size() > 1 && lines[1].starts_with("lines "))
        return lines[1] == "lines " + std::to_string(lines.size()) && !lease.state.empty() ? "" : cut_off;
    return whole(lease) ? "" : cut_off;
}

std::string_view variable(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

bool find_lease_of_job(std::string_view folder, LeaseFile& lease, std::string& error) {
    const std::string_view job = variable("SLURM_JOB_ID"), node = variable("SLURMD_NODENAME");
    if (job.empty() || node.empty() || job.find_first_not_of("0123456789") != job.npos ||
        node.find('/') != node.npos) {
        error = "this process is in no job of Slurm, whose slice GPUKERNEL_LEASE_FILE names";
        return false;
    }
    const std::string here = std::string(folder) + "/" + std::string(node);
    const std::string path = here + "/jobs/" + std::string(job) + "/lease";
    if (::access(path.c_str(), F_OK) == 0 || errno != ENOENT)
        return read_lease_file(path.c_str(), lease, error);
    lease = {};
    lease.state = "none";
    lease.kernel = job;
    lease.socket = here + "/socket";
    error = "the slice of this job is not there yet";
    return false;
}
}  // namespace

bool read_lease_file(const char* path, LeaseFile& lease, std::string& error) {
    std::string problem;
    const std::string content = content_of(path, problem);
    LeaseFile found;
    if (problem.empty()) problem = parse(content, found);
    if (!problem.empty()) {
        error = std::string("the lease file ") + path + " " + problem;
        return false;
    }
    lease = std::move(found);
    if (lease.state == "live") return true;
    error = lease.reason.empty() ? "the lease of this slice is not live" : lease.reason;
    return false;
}

bool lease_of_job(const LeaseFile& lease) {
    return !lease.socket.empty() && variable("GPUKERNEL_LEASE_FILE").starts_with(OF_SLURM);
}

bool find_lease(LeaseFile& lease, std::string& error) {
    const std::string_view named = variable("GPUKERNEL_LEASE_FILE");
    if (named.starts_with(OF_SLURM)) return find_lease_of_job(named.substr(OF_SLURM.size()), lease, error);
    return !named.empty() && read_lease_file(named.data(), lease, error);
}

}  // namespace gpukernel::wire
