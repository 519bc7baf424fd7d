#include "lease_file.h"

#include <fstream>
#include <sstream>

namespace gpukernel::wire {

bool read_lease_file(const char* path, LeaseFile& lease, std::string& error) {
    std::ifstream file(path);
    if (!file) {
        error = std::string("the lease file ") + path + " cannot be read";
        return false;
    }
    std::string reason;
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string key;
        words >> key;
        if (key == "secret") words >> lease.secret;
        if (key == "driver") std::getline(words >> std::ws, lease.driver);
        if (key == "lease") words >> lease.lease;
        if (key == "state") words >> lease.state;
        if (key == "key") words >> lease.key;
        if (key == "desk") std::getline(words >> std::ws, lease.desk);
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
