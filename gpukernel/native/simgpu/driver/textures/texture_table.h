// The textures and surfaces of a device; each launch takes a snapshot.
#pragma once

#include <mutex>

#include "simgpu/texture.h"

namespace gpukernel::simgpu {

class TextureTable {
  public:
    void set(uint64_t handle, std::shared_ptr<const Texture> texture) {  // nullptr: there is none any more
        std::lock_guard lock(mutex_);
        if (texture)
            all_[handle] = std::move(texture);
        else
            all_.erase(handle);
        shown_.reset();
    }
    // Copied only where something has changed since; nullptr where there are none.
    std::shared_ptr<const Textures> now() {
        std::lock_guard lock(mutex_);
        if (!shown_ && !all_.empty()) shown_ = std::make_shared<const Textures>(all_);
        return shown_;
    }

  private:
    std::mutex mutex_;
    Textures all_;
    std::shared_ptr<const Textures> shown_;
};

}  // namespace gpukernel::simgpu
