#include "worker/lease/shared.h"

#include <sys/random.h>

namespace gpukernel::worker {

std::optional<SharedName> new_shared_name() {
    SharedName name;
    return ::getrandom(name.data(), sizeof name, 0) == sizeof name ? std::optional(name) : std::nullopt;
}

void SharedEvents::add(CUevent event, uint64_t program, HostCharge charge) {
    std::lock_guard lock(mutex_);
    events_.emplace(event, Shared{program, std::move(charge), 1, std::nullopt});
}

std::optional<SharedName> SharedEvents::name_of(CUevent event) {
    std::lock_guard lock(mutex_);
    auto it = events_.find(event);
    if (it == events_.end()) return std::nullopt;
    if (!it->second.name) it->second.name = new_shared_name();
    return it->second.name;
}

CUresult SharedEvents::open(const SharedName& name, uint64_t program, CUevent& event) {
    std::lock_guard lock(mutex_);
    for (auto& [its, shared] : events_) {
        if (shared.name != name) continue;
        if (shared.program == program) return CUDA_ERROR_INVALID_CONTEXT;
        ++shared.handles;
        event = its;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_HANDLE;
}

CUresult SharedEvents::destroy(Driver& cuda, CUevent event) {
    {
        std::lock_guard lock(mutex_);
        if (auto it = events_.find(event); it != events_.end()) {
            if (--it->second.handles) return CUDA_SUCCESS;
            events_.erase(it);
        }
    }
    return cuda.cuEventDestroy_v2(event);
}

}  // namespace gpukernel::worker
