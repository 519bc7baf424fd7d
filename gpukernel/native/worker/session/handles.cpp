// The program's numbers of handles, and the driver's handles behind them.
#include "worker/session/session.h"

namespace gpukernel::worker {

bool Session::find(uint64_t name, Kind kind, void*& handle) {
    if (kind == Kind::stream && name <= reinterpret_cast<uintptr_t>(CU_STREAM_PER_THREAD)) {
        handle = reinterpret_cast<void*>(name);  // the default streams
        if (handle != CU_STREAM_PER_THREAD) return true;
        // The program's thread, not the one that happens to serve it.
        if (!own_default_ && cuda().cuStreamCreate(&own_default_, CU_STREAM_DEFAULT) != CUDA_SUCCESS)
            return false;
        handle = own_default_;
        return true;
    }
    std::lock_guard lock(handles_mutex_);
    auto it = handles_.find(name);
    if (it == handles_.end()) return false;
    OwnedHandle& entry = it->second;
    handle = entry.handle;
    if (entry.kind == kind) return true;
    // A program may launch a kernel of a library as a function.  NVIDIA's driver takes one so in launches, and
    // not where parameters and attributes are asked for: it gets the kernel's function in this context always.
    if (kind != Kind::function || entry.kind != Kind::kernel) return false;
    if (!entry.function && cuda().cuKernelGetFunction(&entry.function, static_cast<CUkernel>(entry.handle)) !=
                               CUDA_SUCCESS)
        return false;
    handle = entry.function;
    return true;
}

uint64_t Session::number_of(const void* handle, Kind kind, const void* parent, HostCharge charge) {
    std::lock_guard lock(handles_mutex_);
    auto [it, fresh] = names_.try_emplace({kind, handle}, 0);
    if (fresh) {
        if (!charge.bytes()) charge = HostCharge(lease_.host_memory), charge.note(HostMemory::HANDLE);
        it->second = next_name_ += 16;
        handles_[it->second] = {const_cast<void*>(handle), kind, parent, std::move(charge)};
    }
    return it->second;
}

bool Session::accept_number(uint64_t name, const void* handle, Kind kind, HostCharge charge) {
    std::lock_guard lock(handles_mutex_);
    return (name & wire::NAMED_BY_SHIM) &&
           handles_
               .try_emplace(name, OwnedHandle{const_cast<void*>(handle), kind, nullptr, std::move(charge)})
               .second;
}

bool Session::has_parent(uint64_t name) const {
    std::lock_guard lock(handles_mutex_);
    auto it = handles_.find(name);
    return it != handles_.end() && it->second.parent;
}

void Session::drop(uint64_t name) {
    std::lock_guard lock(handles_mutex_);
    drop_under_lock(name);
}

void Session::drop_under_lock(uint64_t name) {
    auto it = handles_.find(name);
    if (it == handles_.end()) return;
    const void* const gone = it->second.handle;
    names_.erase({it->second.kind, gone});
    linked_.erase(gone);
    handles_.erase(it);
    // What lived in it is gone too, and the driver may give its address to something else.
    std::vector<uint64_t> children;
    for (const auto& [child, entry] : handles_)
        if (entry.parent == gone) children.push_back(child);
    for (uint64_t child : children) drop_under_lock(child);
}

std::vector<char>* Session::link_data(const void* link, size_t size) {
    Linked& linked = linked_.try_emplace(link, Linked{HostCharge(lease_.host_memory), {}}).first->second;
    return linked.charge.grow(linked.charge.bytes() + size + HostMemory::HANDLE)
               ? &linked.inputs.emplace_back(size)
               : nullptr;
}

}  // namespace gpukernel::worker
