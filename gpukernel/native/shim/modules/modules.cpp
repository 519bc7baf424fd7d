// Modules and libraries: their images, functions' names and parameters, and the linker.
#include "shim/modules/modules.h"

#include <functional>
#include <map>

#include "common/hmac.h"
#include "common/image.h"
#include "shim/managed/managed.h"
#include "shim/modules/libraries.h"
#include "shim/transport/request.h"

using namespace gpukernel::shim;
using gpukernel::libcuda::JitLogs;
using gpukernel::libcuda::limited_registers;
namespace wire = gpukernel::wire;

namespace {
void write(const JitLogs& logs, std::string_view log) {
    if (!logs.write(log)) complain(std::string(log));
}

// Sends `message` with `image`: first by its name if the worker's server may have it, then whole.  `read`
// reads the answer.
template <class Message>
CUresult send_image(Connection& connection, Message message, std::string_view image,
                    const std::function<CUresult(Request&, CUresult)>& read) {
    if (connection.keeps_images() && image.size() >= wire::NAMED_IMAGE) {
        const auto name = wire::hmac_sha256(connection.image_salt(), {image});
        message.form = wire::named_image;
        message.image = {reinterpret_cast<const char*>(name.data()), name.size()};
        Request request(connection, message);
        const CUresult result = request.send();
        if (result != CUDA_ERROR_FILE_NOT_FOUND) return read(request, result);
    }
    message.form = wire::whole_image;
    message.image = {};  // sent from where it is
    Request request(connection, message);
    return read(request, request.send_with(image.data(), image.size()));
}

template <class Message, class Answer>
CUresult load(Connection& connection, const void* image, const JitLogs& logs, uint64_t& handle) {
    std::string_view bytes;
    if (!image) return CUDA_ERROR_INVALID_VALUE;
    if (!wire::extent_of(image, bytes)) return CUDA_ERROR_INVALID_IMAGE;
    std::string copy;  // of managed memory, which is not touched in the middle of a request
    if (is_managed(reinterpret_cast<uint64_t>(image))) bytes = copy = bytes;
    return send_image(connection, Message{}, bytes, [&](Request& request, CUresult result) {
        const auto answer = request.answer<Answer>();
        write(logs, answer.log);
        if (result == CUDA_SUCCESS) handle = answer.handle.value_or(0);
        return result;
    });
}

std::mutex layouts_mutex;
using Key = std::pair<const Connection*, const void*>;  // handles are numbered by connection
std::map<Key, std::shared_ptr<const Layout>> layouts;

struct LinkLogs {
    std::mutex mutex;
    std::map<Key, JitLogs> logs;
    std::map<Key, std::string> images;
};
LinkLogs links;
}  // namespace

namespace gpukernel::shim {

CUresult layout_of(Connection& connection, const void* function, std::shared_ptr<const Layout>& layout) {
    {
        std::lock_guard lock(layouts_mutex);
        if (auto it = layouts.find({&connection, function}); it != layouts.end()) {
            layout = it->second;
            return CUDA_SUCCESS;
        }
    }
    Request request(connection, wire::KernelLayoutRequest{reinterpret_cast<uint64_t>(function)});
    if (CUresult error = request.send(); error != CUDA_SUCCESS) return error;
    const auto answer = request.answer<wire::KernelLayoutAnswer>();
    if (request.failed()) return CUDA_ERROR_UNKNOWN;
    auto fresh = std::make_shared<Layout>();
    for (const auto [offset, size] : answer.parameters) {
        // Launches copy by it, so parameters must follow one another in a block of bounded size.
        if (offset < fresh->bytes || offset > MOST_PARAMETER_BYTES || size > MOST_PARAMETER_BYTES - offset)
            return CUDA_ERROR_UNKNOWN;
        fresh->parameters.push_back({offset, size});
        fresh->bytes = offset + size;
    }
    fresh->name = answer.name;
    fresh->most_threads = answer.most_threads;
    fresh->registers = answer.registers;
    std::lock_guard lock(layouts_mutex);
    layout = layouts[{&connection, function}] = fresh;
    return CUDA_SUCCESS;
}

CUresult load_library_on(Connection& connection, const void* image, const JitLogs& logs, uint64_t& handle) {
    return load<wire::LoadLibraryRequest, wire::LoadLibraryAnswer>(connection, image, logs, handle);
}

}  // namespace gpukernel::shim

CUresult gpukernel::libcuda::load_module(const void* image, size_t, const JitLogs& logs, CUmodule& module) {
    GPUKERNEL_CURRENT(connection);
    uint64_t handle = 0;
    const CUresult result =
        load<wire::LoadImageRequest, wire::LoadImageAnswer>(*connection, image, logs, handle);
    if (result == CUDA_SUCCESS) module = reinterpret_cast<CUmodule>(handle);
    return result;
}
CUresult gpukernel::libcuda::load_library(const void* image, size_t, const JitLogs& logs,
                                          CUlibrary& library) {
    GPUKERNEL_DEFAULT_DEVICE(connection);
    uint64_t handle = 0;
    const CUresult result = load_library_on(*connection, image, logs, handle);
    if (result != CUDA_SUCCESS) return result;
    std::string_view bytes;
    if (several_devices() && wire::extent_of(image, bytes))
        library = named_library(*connection, handle, bytes);
    else
        library = reinterpret_cast<CUlibrary>(handle);
    return CUDA_SUCCESS;
}

namespace {
template <class Handle>
CUresult list(Connection& connection, bool of_library, const void* owner, Handle* handles, unsigned room) {
    if (!handles && room) return CUDA_ERROR_INVALID_VALUE;
    Request request(connection, wire::FunctionsRequest{of_library, reinterpret_cast<uint64_t>(owner), room});
    CUresult result = request.send();
    if (result != CUDA_SUCCESS) return result;
    const auto answer = request.answer<wire::FunctionsAnswer>();
    const size_t count = std::min<size_t>(answer.handles.size(), room);
    for (size_t i = 0; i < count; ++i) handles[i] = reinterpret_cast<Handle>(answer.handles[i]);
    return request.failed() ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
}  // namespace

CUresult CUDAAPI cuModuleEnumerateFunctions(CUfunction* functions, unsigned int numFunctions, CUmodule mod) {
    GPUKERNEL_CURRENT(connection);
    return list(*connection, false, mod, functions, numFunctions);
}
CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int numKernels, CUlibrary lib) {
    GPUKERNEL_DEFAULT_DEVICE(connection);
    if (!several_devices()) return list(*connection, true, lib, kernels, numKernels);
    CUlibrary there = lib;
    unsigned count = 0;
    if (CUresult error = cuLibraryGetKernelCount(&count, lib); error != CUDA_SUCCESS) return error;
    if (CUresult error = name_there(*connection, there); error != CUDA_SUCCESS) return error;
    if (CUresult error = list(*connection, true, there, kernels, numKernels); error != CUDA_SUCCESS)
        return error;
    return name_kernels(*connection, lib, kernels, std::min(count, numKernels));
}

CUresult CUDAAPI cuFuncGetName(const char** name, CUfunction hfunc) {
    GPUKERNEL_CURRENT(connection);
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = name_there(*connection, hfunc); error != CUDA_SUCCESS) return error;
    std::shared_ptr<const Layout> layout;
    CUresult result = layout_of(*connection, hfunc, layout);
    if (result == CUDA_SUCCESS) *name = layout->name.c_str();
    return result;
}
CUresult CUDAAPI cuKernelGetName(const char** name, CUkernel hfunc) {
    return cuFuncGetName(name, reinterpret_cast<CUfunction>(hfunc));
}
CUresult CUDAAPI cuLinkCreate(unsigned int numOptions, CUjit_option* options, void** optionValues,
                              CUlinkState* stateOut) {
    GPUKERNEL_CURRENT(connection);
    if (!stateOut) return CUDA_ERROR_INVALID_VALUE;
    Request request(*connection, wire::LinkCreateRequest{});
    CUresult result = request.send();
    if (result != CUDA_SUCCESS) return result;
    *stateOut = reinterpret_cast<CUlinkState>(request.answer<wire::LinkCreateAnswer>().link);
    std::lock_guard lock(links.mutex);
    links.logs[{connection, *stateOut}] = JitLogs(numOptions, options, optionValues);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLinkAddData(CUlinkState state, CUjitInputType type, void* data, size_t size,
                               const char* name, unsigned int numOptions, CUjit_option* options,
                               void** optionValues) {
    GPUKERNEL_CURRENT(connection);
    if (!data) return CUDA_ERROR_INVALID_VALUE;
    std::string_view bytes(static_cast<const char*>(data), size);
    const std::string label = name ? name : "";
    std::string copy;
    if (is_managed(reinterpret_cast<uint64_t>(data))) bytes = copy = bytes;
    JitLogs logs;
    {
        std::lock_guard lock(links.mutex);
        logs = links.logs[{connection, state}];
    }
    if (std::string limited = limited_registers(bytes, logs); !limited.empty())
        bytes = copy = std::move(limited);
    const wire::LinkAddRequest message{reinterpret_cast<uint64_t>(state), type, label, {}, {}};
    return send_image(*connection, message, bytes, [&](Request& request, CUresult result) {
        const auto answer = request.answer<wire::LinkAddAnswer>();
        std::lock_guard lock(links.mutex);
        if (result != CUDA_SUCCESS) write(links.logs[{connection, state}], answer.log);
        return result;
    });
}
CUresult CUDAAPI cuLinkComplete(CUlinkState state, void** cubinOut, size_t* sizeOut) {
    GPUKERNEL_CURRENT(connection);
    Request request(*connection, wire::LinkCompleteRequest{reinterpret_cast<uint64_t>(state)});
    CUresult result = request.send();
    const auto answer = request.answer<wire::LinkCompleteAnswer>();
    std::lock_guard lock(links.mutex);
    write(links.logs[{connection, state}], answer.log);
    if (result != CUDA_SUCCESS) return result;
    // The caller may read it until cuLinkDestroy, which programs rarely call, so it is kept.
    std::string& image = links.images[{connection, state}];
    image = answer.image;
    if (cubinOut) *cubinOut = image.data();
    if (sizeOut) *sizeOut = image.size();
    return CUDA_SUCCESS;
}
