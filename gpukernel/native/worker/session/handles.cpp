// The program's numbers of handles, and the driver's handles behind them.
#include "worker/lease/measured.h"

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
    const void* owner;
    Kind have;
    {
        std::lock_guard lock(handles_mutex_);
        const auto it = handles_.find(name);
        if (it == handles_.end()) return false;
        const OwnedHandle& entry = it->second;
        handle = entry.handle, have = entry.kind, owner = entry.parent;
        if (kind != Kind::function || (have == Kind::function && !lease_.loads_lazily)) return have == kind;
        if (entry.function) return handle = entry.function, true;
    }
    if (have != Kind::function && have != Kind::kernel) return false;
    CUfunction function = static_cast<CUfunction>(handle);
    if (!load_function(function, have == Kind::kernel, owner)) return false;
    handle = function;
    std::lock_guard lock(handles_mutex_);
    if (const auto it = handles_.find(name); it != handles_.end()) it->second.function = function;
    return true;
}

// A program may launch a kernel of a library as a function.  NVIDIA's driver takes one so in launches, and
// not where parameters and attributes are asked for: it gets the kernel's function in this context always.
bool Session::load_function(CUfunction& function, bool of_kernel, const void* owner) {
    const CUresult result = load_charged(*this, owner, [&] {
        if (of_kernel) {
            const auto kernel = reinterpret_cast<CUkernel>(function);
            if (CUresult error = cuda().cuKernelGetFunction(&function, kernel)) return error;
        }
        return lease_.loads_lazily ? load_now(function) : CUDA_SUCCESS;
    });
    if (result == CUDA_ERROR_OUT_OF_MEMORY) keep(result);
    return result == CUDA_SUCCESS;
}

CUresult Session::load_now(CUfunction function) {
    const CUresult result = cuda().cuFuncLoad(function);
    return result == CUDA_ERROR_NOT_SUPPORTED ? CUDA_SUCCESS : result;  // a driver older than the call
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

const void* Session::parent_of(uint64_t name) const {
    std::lock_guard lock(handles_mutex_);
    auto it = handles_.find(name);
    return it == handles_.end() ? nullptr : it->second.parent;
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
