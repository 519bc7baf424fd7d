// Any bytes as a lease file, which a program reads before anything else: they are refused with a sentence, or
// say what the file's page says that they do.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "common/lease_file.h"

using namespace gpukernel;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const int file = ::memfd_create("lease", MFD_CLOEXEC);
    if (file < 0 || ::write(file, data, size) != static_cast<ssize_t>(size)) std::abort();
    const std::string path = "/proc/self/fd/" + std::to_string(file);
    wire::LeaseFile lease;
    std::string error;
    const bool live = wire::read_lease_file(path.c_str(), lease, error);
    ::close(file);
    if (live ? lease.state != "live" || !error.empty() : error.empty()) std::abort();
    if (!live && lease.state == "live") std::abort();
    for (const auto& endpoints : lease.devices)
        for (const std::string& endpoint : endpoints)
            if (endpoint.empty()) std::abort();
    return 0;
}
