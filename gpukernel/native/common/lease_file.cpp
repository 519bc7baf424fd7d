#include "common/lease_file.h"

#include <fstream>
#include <sstream>

namespace gpukernel::wire {

namespace {
// Version 1 (gpukernel 0.1) called two keys differently.
std::string key_of_version_2(const std::string& key) {
    if (key == "desk") return "socket";
    if (key == "key") return "kernel";
    return key;
}
}  // namespace

bool read_lease_file(const char* path, LeaseFile& lease, std::string& error) {
    std::ifstream file(path);
    if (!file) {
        error = std::string("the lease file ") + path + " cannot be read";
        return false;
    }
    std::string version, reason;
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string key;
        words >> key;
        if (version.empty()) {
            if (key == "version") words >> version;
            if (version == "1" || version == "2") continue;
            error = std::string("the lease file ") + path + " has version '" + version +
                    "', and this gpukernel reads versions 1 and 2: start the program or the kernel again "
                    "with one "
                    "version of gpukernel";
            return false;
        }
        if (version == "1") key = key_of_version_2(key);
        if (key == "secret") words >> lease.secret;
        if (key == "driver") std::getline(words >> std::ws, lease.driver);
        if (key == "lease") words >> lease.lease;
        if (key == "state") words >> lease.state;
        if (key == "kernel") words >> lease.kernel;
        if (key == "socket") std::getline(words >> std::ws, lease.socket);
        if (key == "reason") std::getline(words >> std::ws, reason);
        if (key == "device") {
            std::vector<std::string> endpoints;
            int number;
            words >> number;
            for (std::string endpoint; words >> endpoint;) endpoints.push_back(endpoint);
            lease.devices.push_back(std::move(endpoints));
        }
    }
    if (lease.state != "live") {
        error = reason.empty() ? "the lease of this slice is not live" : reason;
        return false;
    }
    return true;
}

}  // namespace gpukernel::wire
