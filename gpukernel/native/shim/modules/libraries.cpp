#include "shim/modules/libraries.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>

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

std::mutex mutex;
std::map<const void*, std::unique_ptr<Library>> libraries;
std::map<const void*, Kernel*> kernels;

template <class Value>
Value* in(const std::map<const void*, Value*>& all, const void* handle) {
    const auto found = all.find(handle);
    return found == all.end() ? nullptr : found->second;
}
Library* library_of(const void* handle) {
    const auto found = libraries.find(handle);
    return found == libraries.end() ? nullptr : found->second.get();
}

CUresult name_of(Connection& connection, Library& library, uint64_t& name) {
    if (const auto known = library.names.find(&connection); known != library.names.end()) {
        name = known->second;
        return CUDA_SUCCESS;
    }
    if (CUresult error = load_library_on(connection, library.image.data(), {}, name); error != CUDA_SUCCESS)
        return error;
    library.names[&connection] = name;
    return CUDA_SUCCESS;
}

CUresult name_of(Connection& connection, Kernel& kernel, uint64_t& name) {
    if (const auto known = kernel.names.find(&connection); known != kernel.names.end()) {
        name = known->second;
        return CUDA_SUCCESS;
    }
    uint64_t library = 0;
    if (CUresult error = name_of(connection, *kernel.library, library); error != CUDA_SUCCESS) return error;
    Request request(connection, DriverCall::cuLibraryGetKernel);
    request.put(library);
    request.text(kernel.name);
    if (CUresult error = request.send(); error != CUDA_SUCCESS) return error;
    kernel.names[&connection] = name = request.get<uint64_t>();
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

template <class Handle, class Object>
CUresult replace(Connection& connection, Handle& handle, Object* object) {
    if (!object) return CUDA_SUCCESS;
    uint64_t name = 0;
    if (CUresult error = name_of(connection, *object, name); error != CUDA_SUCCESS) return error;
    handle = reinterpret_cast<Handle>(name);
    return CUDA_SUCCESS;
}
}  // namespace

CUresult name_there(Connection& connection, CUlibrary& library) {
    std::lock_guard lock(mutex);
    return replace(connection, library, library_of(library));
}
CUresult name_there(Connection& connection, CUkernel& kernel) {
    std::lock_guard lock(mutex);
    return replace(connection, kernel, in(kernels, kernel));
}
CUresult name_there(Connection& connection, CUfunction& function) {
    std::lock_guard lock(mutex);
    return replace(connection, function, in(kernels, function));
}
CUresult name_there(Connection& connection, const void*& function) {
    std::lock_guard lock(mutex);
    return replace(connection, function, in(kernels, function));
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
    std::lock_guard lock(mutex);
    for (const auto& [handle, library] : libraries) {
        library->names.erase(&connection);
        for (const auto& [name, kernel] : library->kernels) kernel->names.erase(&connection);
    }
}

std::optional<CUresult> process_cuLibraryUnload(Connection&, CUlibrary library) {
    std::lock_guard lock(mutex);
    Library* const of = library_of(library);
    if (!of) return std::nullopt;
    CUresult first = CUDA_SUCCESS;
    for (const auto& device : process()->devices) {
        const auto known = of->names.find(&device->connection);
        if (known == of->names.end()) continue;
        if (has_managed())
            managed_cuLibraryUnload(device->connection, reinterpret_cast<CUlibrary>(known->second));
        Request request(device->connection, DriverCall::cuLibraryUnload);
        request.put(known->second);
        if (CUresult error = request.send(); first == CUDA_SUCCESS) first = error;
    }
    for (const auto& [name, kernel] : of->kernels) kernels.erase(kernel.get());
    libraries.erase(library);
    return first;
}

std::optional<CUresult> process_cuLibraryGetKernel(Connection& connection, CUkernel* kernel,
                                                   CUlibrary library, const char* name) {
    std::lock_guard lock(mutex);
    Library* const of = library_of(library);
    if (!of) return std::nullopt;
    Kernel asked{of, name, {}};
    uint64_t handle = 0;
    if (const auto known = of->kernels.find(asked.name); known == of->kernels.end())
        if (CUresult error = name_of(connection, asked, handle); error != CUDA_SUCCESS) return error;
    if (kernel)
        *kernel = handle ? named_kernel(connection, *of, asked.name, handle)
                         : reinterpret_cast<CUkernel>(of->kernels.find(asked.name)->second.get());
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
