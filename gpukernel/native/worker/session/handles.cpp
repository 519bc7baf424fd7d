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
        handle = entry.handle, have = entry.kind;
        const bool of_kernel = have == Kind::kernel && kind == Kind::function;
        if (!of_kernel && have != kind) return false;
        const bool loads = have == Kind::function || have == Kind::kernel;
        if (!of_kernel && !(loads && lease_.heeds_first_use())) return true;
        if (entry.function) return handle = of_kernel ? entry.function : handle, true;
        owner = loaded_with_under_lock(entry.parent);
    }
    CUfunction function = static_cast<CUfunction>(handle);
    if (!load_function(function, have == Kind::kernel, owner)) return false;
    std::lock_guard lock(handles_mutex_);
    const auto it = handles_.find(name);
    if (it == handles_.end()) return false;  // another thread has unloaded it while this one waited
    it->second.function = function;
    if (kind == Kind::function) handle = function;
    return true;
}

// A program may launch a kernel of a library as a function.  NVIDIA's driver takes one so in launches, and
// not where parameters and attributes are asked for: it gets the kernel's function in this context always.
bool Session::load_function(CUfunction& function, bool of_kernel, const void* owner) {
    CUresult result = load_charged(*this, owner, [&] {
        if (of_kernel) {
            const auto kernel = reinterpret_cast<CUkernel>(function);
            if (CUresult error = cuda().cuKernelGetFunction(&function, kernel)) return error;
        }
        return lease_.loads_lazily ? cuda().cuFuncLoad(function) : CUDA_SUCCESS;
    });
    if (result == CUDA_SUCCESS && lease_.local_memory_on_device) result = set_local_memory_aside(function);
    context_->not_loaded = result;
    return result == CUDA_SUCCESS;
}

uint64_t Session::set_aside_by(CUlimit limit, uint64_t value) {
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE) return value > (8 << 20) ? value : 0;
    if (limit == CU_LIMIT_PRINTF_FIFO_SIZE) return value > (1 << 20) ? value : 0;
    if (limit != CU_LIMIT_STACK_SIZE) return 0;
    value = std::max(value, lease_.local_bytes);
    if (value <= 1024) return 0;
    int multiprocessors = 1, threads = 2048;  // a stack for each thread that fits on the device at one time
    cuda().cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device());
    cuda().cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device());
    uint64_t bytes;
    return __builtin_mul_overflow(value, uint64_t(multiprocessors) * threads, &bytes) ? UINT64_MAX : bytes;
}

// "The driver automatically increases the per-thread stack size for each kernel launch as needed.  This size
// isn't reset back to the original value after each launch." (cuCtxSetLimit)
CUresult Session::set_local_memory_aside(CUfunction function) {
    Lease& lease = lease_;
    int bytes = 0;
    CUresult result = cuda().cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function);
    if (result != CUDA_SUCCESS) return result;
    for (uint64_t seen = lease.releases();; seen = lease.releases()) {
        {
            std::lock_guard allocating(lease.allocation_mutex);
            const uint64_t before = lease.local_bytes;
            if (static_cast<uint64_t>(bytes) <= before) return CUDA_SUCCESS;
            size_t limit = 0;
            result = cuda().cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE);
            if (result != CUDA_SUCCESS) return result;
            lease.usual_limits.try_emplace(CU_LIMIT_STACK_SIZE, limit);
            lease.local_bytes = bytes;
            if (lease.set_aside(CU_LIMIT_STACK_SIZE, set_aside_by(CU_LIMIT_STACK_SIZE, limit)))
                return CUDA_SUCCESS;
            lease.local_bytes = before;
        }
        if (!wait_for_memory(seen)) return CUDA_ERROR_OUT_OF_MEMORY;
    }
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

const void* Session::loaded_with(const void* handle) const {
    std::lock_guard lock(handles_mutex_);
    return loaded_with_under_lock(handle);
}

// At most: a module, for which a program asked by a function, which it has by a kernel, of a library.
const void* Session::loaded_with_under_lock(const void* handle) const {
    for (int steps = 0; steps < 4 && !lease_.charges_module(handle); ++steps) {
        const void* parent = nullptr;
        for (const Kind kind : {Kind::module, Kind::function, Kind::kernel})
            if (const auto name = names_.find({kind, handle}); name != names_.end() && !parent)
                parent = handles_.at(name->second).parent;
        if (!parent) break;
        handle = parent;
    }
    return handle;
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
