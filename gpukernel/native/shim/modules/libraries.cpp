#include "shim/modules/libraries.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shim/managed/managed.h"
#include "shim/modules/modules.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

using wire::DriverCall;
std::optional<CUresult> managed_cuLibraryUnload(Connection& connection, CUlibrary library);

namespace {
using Names = std::map<const Connection*, uint64_t>;  // the workers'

struct Library;
struct Kernel {
    Library* library;
    std::string name;
    Names names;
};
struct Library {
    std::string image;
    Names names;
    std::map<std::string, std::unique_ptr<Kernel>, std::less<>> kernels;
};

// What a worker calls libraries and kernels is found out by one thread at a time for each device, with the
// device's `loading` held; libraries end with all devices' held.  `mutex` is that of the maps and is never
// held over a request, so that a worker that does not answer holds up nobody on another device.
std::mutex mutex;
std::map<const Connection*, std::mutex> loading_mutexes;
std::map<const void*, std::unique_ptr<Library>> libraries;
std::map<const void*, Kernel*> kernels;

std::unique_lock<std::mutex> loading(const Connection& connection) {
    std::unique_lock lock(mutex);
    std::mutex& its = loading_mutexes[&connection];
    lock.unlock();
    return std::unique_lock(its);
}

template <class Value>
Value* in(const std::map<const void*, Value*>& all, const void* handle) {
    const auto found = all.find(handle);
    return found == all.end() ? nullptr : found->second;
}
Library* library_of(const void* handle) {
    const auto found = libraries.find(handle);
    return found == libraries.end() ? nullptr : found->second.get();
}

// Whether the device's worker has a name of a library or kernel already.
bool known(const Connection& connection, const Names& names, uint64_t& name) {
    std::lock_guard lock(mutex);
    const auto found = names.find(&connection);
    if (found == names.end()) return false;
    name = found->second;
    return true;
}
void remember(const Connection& connection, Names& names, uint64_t name) {
    std::lock_guard lock(mutex);
    names[&connection] = name;
}

// While the device's `loading` is held.
CUresult name_of(Connection& connection, Library& library, uint64_t& name) {
    if (known(connection, library.names, name)) return CUDA_SUCCESS;
    if (CUresult error = load_library_on(connection, library.image.data(), {}, name); error != CUDA_SUCCESS)
        return error;
    remember(connection, library.names, name);
    return CUDA_SUCCESS;
}

CUresult name_of(Connection& connection, Kernel& kernel, uint64_t& name) {
    if (known(connection, kernel.names, name)) return CUDA_SUCCESS;
    uint64_t library = 0;
    if (CUresult error = name_of(connection, *kernel.library, library); error != CUDA_SUCCESS) return error;
    Request request(connection, DriverCall::cuLibraryGetKernel);
    request.put(library);
    request.text(kernel.name);
    if (CUresult error = request.send(); error != CUDA_SUCCESS) return error;
    remember(connection, kernel.names, name = request.get<uint64_t>());
    return CUDA_SUCCESS;
}

// The library's kernel of this name, with what its worker calls it.
CUkernel named_kernel(Connection& connection, Library& library, const std::string& name, uint64_t handle) {
    std::unique_ptr<Kernel>& kernel = library.kernels[name];
    if (!kernel) {
        kernel = std::make_unique<Kernel>(Kernel{&library, name, {}});
        kernels[kernel.get()] = kernel.get();
    }
    kernel->names[&connection] = handle;
    return reinterpret_cast<CUkernel>(kernel.get());
}

Kernel* kernel_of(const void* handle) { return in(kernels, handle); }

template <class Handle, class Object>
CUresult replace(Connection& connection, Handle& handle, Object* (*find)(const void*)) {
    std::unique_lock lock(mutex);
    const auto replaced = [&] {
        Object* const object = find(handle);
        if (!object) return true;
        const auto found = object->names.find(&connection);
        if (found == object->names.end()) return false;
        handle = reinterpret_cast<Handle>(found->second);
        return true;
    };
    if (replaced()) return CUDA_SUCCESS;
    lock.unlock();
    const auto held = loading(connection);
    lock.lock();
    if (replaced()) return CUDA_SUCCESS;
    Object* const object = find(handle);
    lock.unlock();
    uint64_t name = 0;
    if (CUresult error = name_of(connection, *object, name); error != CUDA_SUCCESS) return error;
    handle = reinterpret_cast<Handle>(name);
    return CUDA_SUCCESS;
}
}  // namespace

CUresult replace_name(Connection& connection, CUlibrary& library) {
    return replace(connection, library, library_of);
}
CUresult replace_name(Connection& connection, CUkernel& kernel) {
    return replace(connection, kernel, kernel_of);
}
CUresult replace_name(Connection& connection, CUfunction& function) {
    return replace(connection, function, kernel_of);
}
CUresult replace_name(Connection& connection, const void*& function) {
    return replace(connection, function, kernel_of);
}

CUlibrary named_library(Connection& connection, uint64_t handle, std::string_view image) {
    auto library = std::make_unique<Library>(Library{std::string(image), {{&connection, handle}}, {}});
    const auto name = reinterpret_cast<CUlibrary>(library.get());
    std::lock_guard lock(mutex);
    libraries[name] = std::move(library);
    return name;
}

CUresult name_kernels(Connection& connection, CUlibrary library, CUkernel* found, size_t count) {
    for (size_t n = 0; n < count; ++n) {
        std::shared_ptr<const Layout> layout;
        if (CUresult error = layout_of(connection, found[n], layout); error != CUDA_SUCCESS) return error;
        std::lock_guard lock(mutex);
        if (Library* const of = library_of(library))
            found[n] = named_kernel(connection, *of, layout->name, reinterpret_cast<uint64_t>(found[n]));
    }
    return CUDA_SUCCESS;
}

void forget_names(const Connection& connection) {
    const auto held = loading(connection);
    std::lock_guard lock(mutex);
    for (const auto& [handle, library] : libraries) {
        library->names.erase(&connection);
        for (const auto& [name, kernel] : library->kernels) kernel->names.erase(&connection);
    }
}

std::optional<CUresult> process_cuLibraryUnload(Connection&, CUlibrary library) {
    std::vector<std::unique_lock<std::mutex>> held;
    for (const auto& device : process()->devices) held.push_back(loading(device->connection));
    std::unique_lock lock(mutex);
    const auto found = libraries.find(library);
    if (found == libraries.end()) return std::nullopt;
    const std::unique_ptr<Library> ended = std::move(found->second);
    libraries.erase(found);
    for (const auto& [name, kernel] : ended->kernels) kernels.erase(kernel.get());
    lock.unlock();
    held.clear();  // nobody finds it any more
    CUresult first = CUDA_SUCCESS;
    for (const auto& device : process()->devices) {
        const auto named = ended->names.find(&device->connection);
        if (named == ended->names.end()) continue;
        if (has_managed())
            managed_cuLibraryUnload(device->connection, reinterpret_cast<CUlibrary>(named->second));
        Request request(device->connection, DriverCall::cuLibraryUnload);
        request.put(named->second);
        if (CUresult error = request.send(); first == CUDA_SUCCESS) first = error;
    }
    return first;
}

std::optional<CUresult> process_cuLibraryGetKernel(Connection& connection, CUkernel* kernel,
                                                   CUlibrary library, const char* name) {
    const auto held = loading(connection);
    std::unique_lock lock(mutex);
    Library* const of = library_of(library);
    if (!of) return std::nullopt;
    Kernel asked{of, name, {}};
    const auto there = of->kernels.find(asked.name);
    if (there != of->kernels.end()) {
        if (kernel) *kernel = reinterpret_cast<CUkernel>(there->second.get());
        return CUDA_SUCCESS;
    }
    lock.unlock();
    uint64_t handle = 0;
    if (CUresult error = name_of(connection, asked, handle); error != CUDA_SUCCESS) return error;
    lock.lock();
    if (kernel) *kernel = named_kernel(connection, *of, asked.name, handle);
    return CUDA_SUCCESS;
}

std::optional<CUresult> process_cuKernelGetLibrary(Connection&, CUlibrary* library, CUkernel kernel) {
    std::lock_guard lock(mutex);
    const Kernel* const known = in(kernels, kernel);
    if (!known) return std::nullopt;
    if (library) *library = reinterpret_cast<CUlibrary>(known->library);
    return CUDA_SUCCESS;
}

}  // namespace gpukernel::shim
