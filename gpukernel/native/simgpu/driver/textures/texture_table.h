// The textures and surfaces of a device; each launch takes a snapshot.
#pragma once

#include <mutex>
#include <new>

#include "simgpu/host_memory.h"
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
    // Copied only where something has changed since; nullptr where there are none.  Each queued launch may
    // have a copy of its own.  Throws std::bad_alloc where the host has no memory for one more.
    std::shared_ptr<const Textures> now() {
        std::lock_guard lock(mutex_);
        if (!shown_ && !all_.empty()) {
            HostShare share;
            if (!share.grow(all_.size() * EACH)) throw std::bad_alloc();
            shown_ = std::make_shared<const Snapshot>(all_, std::move(share));
        }
        return shown_ ? std::shared_ptr<const Textures>(shown_, &shown_->all) : nullptr;
    }

  private:
    static constexpr uint64_t EACH = 96;  // bytes of an entry
    struct Snapshot {
        Snapshot(Textures all, HostShare share) : all(std::move(all)), share(std::move(share)) {}
        Textures all;
        HostShare share;
    };
    std::mutex mutex_;
    Textures all_;
    std::shared_ptr<const Snapshot> shown_;
};

}  // namespace gpukernel::simgpu
