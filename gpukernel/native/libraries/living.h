// The handles of a library that are valid: a program may pass any address as one.
#pragma once

#include <mutex>
#include <unordered_set>

namespace gpukernel::libraries {

template <class Handle>
class LivingHandles {
  public:
    static LivingHandles& all() {
        static auto* const only = new LivingHandles;  // threads may be inside at exit
        return *only;
    }
    Handle* find(void* handle) {  // nullptr for a stray one
        std::lock_guard lock(mutex_);
        return handles_.contains(handle) ? static_cast<Handle*>(handle) : nullptr;
    }
    void* keep(Handle* handle) {
        std::lock_guard lock(mutex_);
        handles_.insert(handle);
        return handle;
    }
    Handle* drop(void* handle) {
        std::lock_guard lock(mutex_);
        return handles_.erase(handle) ? static_cast<Handle*>(handle) : nullptr;
    }

  private:
    std::mutex mutex_;
    std::unordered_set<void*> handles_;
};

}  // namespace gpukernel::libraries
