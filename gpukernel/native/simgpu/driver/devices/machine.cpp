#include "simgpu/driver/devices/machine.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "common/checked.h"
#include "common/uuid.h"

namespace gpukernel::simgpu {

namespace {
GPUKERNEL_WRAPS uint64_t mix(uint64_t x) {  // splitmix64
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

ProcessUsage* open_list() {
    const char* directory = std::getenv("GPUKERNEL_SIMGPU_PROCESSES");
    if (!directory || !*directory) return nullptr;
    const std::string path = std::string(directory) + "/" + std::to_string(::getpid());
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (file < 0) return nullptr;
    void* memory = MAP_FAILED;
    if (::ftruncate(file, sizeof(ProcessUsage) * MOST_DEVICES) == 0)
        memory =
            ::mmap(nullptr, sizeof(ProcessUsage) * MOST_DEVICES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    return memory == MAP_FAILED ? nullptr : static_cast<ProcessUsage*>(memory);
}
}  // namespace

CUuuid uuid_of(int index) {
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    uint64_t seed = index;
    for (const char* c = host; *c; ++c) seed = mix(seed ^ static_cast<unsigned char>(*c));
    const uint64_t halves[2] = {mix(seed), mix(seed + 1)};
    CUuuid uuid;
    std::memcpy(uuid.bytes, halves, 16);
    return uuid;
}

std::vector<MachineDevice> visible(const std::vector<const Model*>& models) {
    std::vector<MachineDevice> all, chosen;
    for (const Model* model : models) all.push_back({int(all.size()), model});
    const char* wanted = std::getenv("CUDA_VISIBLE_DEVICES");
    if (!wanted) return all;
    for (std::string_view rest = wanted; !rest.empty();) {
        const std::string one(rest.substr(0, rest.find(',')));
        rest.remove_prefix(std::min(one.size() + 1, rest.size()));
        const MachineDevice* found = nullptr;
        char* end = nullptr;
        const unsigned long number = std::strtoul(one.c_str(), &end, 10);
        if (end != one.c_str() && !*end && number < all.size()) found = &all[number];
        if (one.size() > 4 && one.starts_with("GPU-"))
            for (const MachineDevice& device : all)
                if (uuid_text(uuid_of(device.index).bytes).starts_with(one)) found = &device;
        if (!found) break;
        chosen.push_back(*found);
    }
    return chosen;
}

ProcessUsage* list_this_process(int index) {
    static ProcessUsage* const list = open_list();
    return list && index < MOST_DEVICES ? list + index : nullptr;
}

}  // namespace gpukernel::simgpu
