// Module images, functions' names and parameters, the linker.
#include "modules.h"

#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>

#include "managed.h"
#include "request.h"
#include "wire/hmac.h"
#include "wire/image.h"

using namespace gpukernel::shim;
using gpukernel::wire::Special;

namespace {
struct Logs {  // where a program wants the compiler's log
    char* error = nullptr;
    size_t size = 0;
    void** size_out = nullptr;
    Logs() = default;
    Logs(unsigned count, CUjit_option* options, void** values) {
        for (unsigned i = 0; options && values && i < count; ++i) {
            if (options[i] == CU_JIT_ERROR_LOG_BUFFER) error = static_cast<char*>(values[i]);
            if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
                size = reinterpret_cast<uintptr_t>(values[i]) & 0xffffffff, size_out = &values[i];
            if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES) values[i] = nullptr;
            if (options[i] == CU_JIT_INFO_LOG_BUFFER && values[i]) *static_cast<char*>(values[i]) = 0;
        }
    }
    void write(std::string_view log) const {
        const size_t length = error && size ? std::min(log.size(), size - 1) : 0;
        if (length) std::memcpy(error, log.data(), length);
        if (error && size) error[length] = 0;
        if (size_out) *size_out = reinterpret_cast<void*>(length);
        if (!error && !log.empty()) complain(std::string(log));
    }
};

// Makes `call` with `image` at its end: first by its name, where the worker's server may have it.  `begin`
// writes what stands before the image, `end` reads the answer.
CUresult send_image(Connection& connection, Special call, std::string_view image,
                    const std::function<void(Request&)>& begin,
                    const std::function<CUresult(Request&, CUresult)>& end) {
    if (connection.keeps_images() && image.size() >= gpukernel::wire::NAMED_IMAGE) {
        const auto name = gpukernel::wire::hmac_sha256(connection.image_salt(), {image});
        Request request(connection, call);
        begin(request);
        request.put(gpukernel::wire::named_image);
        request.bytes(name.data(), name.size());
        const CUresult result = request.send();
        if (result != CUDA_ERROR_FILE_NOT_FOUND) return end(request, result);
    }
    Request request(connection, call);
    begin(request);
    request.put(gpukernel::wire::whole_image);
    return end(request, request.send_with(image.data(), image.size()));
}

CUresult load(Connection& connection, Special call, const void* image, const Logs& logs, uint64_t& handle) {
    std::string_view bytes;
    if (!image) return CUDA_ERROR_INVALID_VALUE;
    if (!gpukernel::wire::extent_of(image, bytes)) return CUDA_ERROR_INVALID_IMAGE;
    std::string copy;  // of managed memory, which is not touched in the middle of a request
    if (is_managed(reinterpret_cast<uint64_t>(image))) bytes = copy = bytes;
    return send_image(
        connection, call, bytes, [](Request&) {},
        [&](Request& request, CUresult result) {
            logs.write(request.get_text());
            if (result == CUDA_SUCCESS) handle = request.get<uint64_t>();
            return result;
        });
}

bool read_file(const char* path, std::string& bytes) {
    std::ifstream file(path ? path : "", std::ios::binary);
    bytes.assign((std::istreambuf_iterator<char>(file)), {});
    return file.good() || file.eof();
}

std::mutex layouts_mutex;
using Key = std::pair<const Connection*, const void*>;  // each worker numbers on its own
std::map<Key, std::shared_ptr<const Layout>> layouts;

struct LinkLogs {
    std::mutex mutex;
    std::map<Key, Logs> logs;
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
    Request request(connection, Special::kernel_layout);
    request.put(reinterpret_cast<uint64_t>(function));
    if (CUresult error = request.send(); error != CUDA_SUCCESS) return error;
    auto fresh = std::make_shared<Layout>();
    const auto count = request.get<uint32_t>();
    for (uint32_t i = 0; i < count && !request.failed(); ++i) {
        const auto offset = request.get<uint32_t>(), size = request.get<uint32_t>();
        // Launches copy by this, so it must make sense: one behind the other in a block of bounded size.
        if (offset < fresh->bytes || offset > MOST_PARAMETER_BYTES || size > MOST_PARAMETER_BYTES - offset)
            return CUDA_ERROR_UNKNOWN;
        fresh->parameters.push_back({offset, size});
        fresh->bytes = offset + size;
    }
    fresh->name = request.get_text();
    fresh->most_threads = request.get<uint32_t>();
    fresh->registers = request.get<uint32_t>();
    if (request.failed()) return CUDA_ERROR_UNKNOWN;
    std::lock_guard lock(layouts_mutex);
    layout = layouts[{&connection, function}] = fresh;
    return CUDA_SUCCESS;
}

}  // namespace gpukernel::shim

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int numOptions,
                                    CUjit_option* options, void** optionValues) {
    GPUKERNEL_CURRENT(connection);
    if (!module) return CUDA_ERROR_INVALID_VALUE;
    uint64_t handle = 0;
    CUresult result =
        load(*connection, Special::load_image, image, Logs(numOptions, options, optionValues), handle);
    if (result == CUDA_SUCCESS) *module = reinterpret_cast<CUmodule>(handle);
    return result;
}
CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
    return cuModuleLoadDataEx(module, image, 0, nullptr, nullptr);
}
CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule* module, const void* fatCubin) {
    return cuModuleLoadDataEx(module, fatCubin, 0, nullptr, nullptr);
}
CUresult CUDAAPI cuModuleLoad(CUmodule* module, const char* fname) {
    std::string bytes;
    if (!read_file(fname, bytes)) return CUDA_ERROR_FILE_NOT_FOUND;
    return cuModuleLoadData(module, bytes.c_str());
}

CUresult CUDAAPI cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jitOptions,
                                   void** jitOptionsValues, unsigned int numJitOptions,
                                   CUlibraryOption* libraryOptions, void** libraryOptionValues,
                                   unsigned int numLibraryOptions) {
    GPUKERNEL_DEFAULT_DEVICE(connection);
    if (!library) return CUDA_ERROR_INVALID_VALUE;
    uint64_t handle = 0;
    CUresult result = load(*connection, Special::load_library, code,
                           Logs(numJitOptions, jitOptions, jitOptionsValues), handle);
    if (result == CUDA_SUCCESS) *library = reinterpret_cast<CUlibrary>(handle);
    return result;
}
CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary* library, const char* fileName, CUjit_option* jitOptions,
                                       void** jitOptionsValues, unsigned int numJitOptions,
                                       CUlibraryOption* libraryOptions, void** libraryOptionValues,
                                       unsigned int numLibraryOptions) {
    std::string bytes;
    if (!read_file(fileName, bytes)) return CUDA_ERROR_FILE_NOT_FOUND;
    return cuLibraryLoadData(library, bytes.c_str(), jitOptions, jitOptionsValues, numJitOptions,
                             libraryOptions, libraryOptionValues, numLibraryOptions);
}

namespace {
template <class Handle>
CUresult list(Connection& connection, bool of_library, const void* owner, Handle* handles, unsigned room) {
    if (!handles && room) return CUDA_ERROR_INVALID_VALUE;
    Request request(connection, Special::functions);
    request.put<uint32_t>(of_library);
    request.put(reinterpret_cast<uint64_t>(owner));
    request.put<uint32_t>(room);
    CUresult result = request.send();
    if (result != CUDA_SUCCESS) return result;
    const unsigned count = std::min(request.get<uint32_t>(), room);
    for (unsigned i = 0; i < count; ++i) handles[i] = reinterpret_cast<Handle>(request.get<uint64_t>());
    return request.failed() ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
}  // namespace

CUresult CUDAAPI cuModuleEnumerateFunctions(CUfunction* functions, unsigned int numFunctions, CUmodule mod) {
    GPUKERNEL_CURRENT(connection);
    return list(*connection, false, mod, functions, numFunctions);
}
CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int numKernels, CUlibrary lib) {
    GPUKERNEL_DEFAULT_DEVICE(connection);
    return list(*connection, true, lib, kernels, numKernels);
}

CUresult CUDAAPI cuFuncGetName(const char** name, CUfunction hfunc) {
    GPUKERNEL_CURRENT(connection);
    if (!name) return CUDA_ERROR_INVALID_VALUE;
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
    Request request(*connection, Special::link_create);
    CUresult result = request.send();
    if (result != CUDA_SUCCESS) return result;
    *stateOut = reinterpret_cast<CUlinkState>(request.get<uint64_t>());
    std::lock_guard lock(links.mutex);
    links.logs[{connection, *stateOut}] = Logs(numOptions, options, optionValues);
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
    return send_image(
        *connection, Special::link_add, bytes,
        [&](Request& request) {
            request.put(reinterpret_cast<uint64_t>(state));
            request.put<int32_t>(type);
            request.text(label);
        },
        [&](Request& request, CUresult result) {
            std::string_view log = request.get_text();
            std::lock_guard lock(links.mutex);
            if (result != CUDA_SUCCESS) links.logs[{connection, state}].write(log);
            return result;
        });
}
CUresult CUDAAPI cuLinkAddFile(CUlinkState state, CUjitInputType type, const char* path,
                               unsigned int numOptions, CUjit_option* options, void** optionValues) {
    std::string bytes;
    if (!read_file(path, bytes)) return CUDA_ERROR_FILE_NOT_FOUND;
    return cuLinkAddData(state, type, bytes.data(), bytes.size(), path, numOptions, options, optionValues);
}

CUresult CUDAAPI cuLinkComplete(CUlinkState state, void** cubinOut, size_t* sizeOut) {
    GPUKERNEL_CURRENT(connection);
    Request request(*connection, Special::link_complete);
    request.put(reinterpret_cast<uint64_t>(state));
    CUresult result = request.send();
    std::string_view log = request.get_text();
    std::lock_guard lock(links.mutex);
    links.logs[{connection, state}].write(log);
    if (result != CUDA_SUCCESS) return result;
    std::string& image = links.images[{
        connection, state}];  // the caller may read it until cuLinkDestroy, which comes rarely: kept
    image = request.rest();
    if (cubinOut) *cubinOut = image.data();
    if (sizeOut) *sizeOut = image.size();
    return CUDA_SUCCESS;
}
