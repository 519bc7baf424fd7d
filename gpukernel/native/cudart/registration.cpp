// What nvcc's code tells the runtime before main: images, and the functions and variables of the program that
// stand for what is in them.  Nothing of it reaches the driver until a kernel or a variable is used: then its
// image is loaded, as a library, which needs no context of its own, and each kernel is looked up at its first
// launch.  The names and structures are those of crt/host_runtime.h and fatbinary_section.h, which come with
// nvcc.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cudart/runtime.h"

namespace gpukernel::cudart {

namespace {

struct Wrapper {
    int magic;
    int version;  // 2: of relocatable code, whose parts follow
    const void* image;
    const void* const* parts;  // ends with null
};

struct Header {  // of a fat binary
    uint32_t magic;
    uint16_t version, bytes;
    uint64_t rest;
};
constexpr uint32_t FAT_BINARY = 0xBA55ED50;

struct Image {
    const Wrapper* wrapper;
    std::mutex loading;
    CUlibrary library = nullptr;
    CUresult refused = CUDA_SUCCESS;  // that it has nothing for this device does not change
};

struct Kernel {
    Image* image;
    std::string name;
    CUkernel handle = nullptr;
};

struct Variable {
    Image* image;
    std::string name;
    size_t size;
    void** pointer;  // of a managed variable: where the program looks for its address
};

struct Program {
    std::shared_mutex mutex;
    std::unordered_map<Image*, std::vector<const void*>> images;  // and what was registered of each
    std::unordered_map<const void*, Kernel> kernels;
    std::unordered_map<const void*, Variable> variables;
    std::unordered_map<const void*, const void*> known;  // handle → the program's function
};
// Handlers of atexit and destructors come back here.
Program& program() {
    static Program& only = *new Program;
    return only;
}

bool ending = false;  // the driver may be gone before the last image is unregistered

bool for_another_device(CUresult result) {
    return result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_INVALID_IMAGE ||
           result == CUDA_ERROR_INVALID_PTX || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
}

CUresult load(const void* code, CUlibrary& library) {
    return driver::cuLibraryLoadData(&library, code, nullptr, nullptr, 0, nullptr, nullptr, 0);
}

// Links the first `count` parts of relocatable code.
CUresult link(const void* const* parts, size_t count, CUlibrary& library) {
    CUlinkState state;
    if (CUresult result = driver::cuLinkCreate(0, nullptr, nullptr, &state)) return result;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; ++i) {
        const Header* header = static_cast<const Header*>(parts[i]);
        if (header->magic != FAT_BINARY)
            result = CUDA_ERROR_INVALID_IMAGE;
        else
            result = driver::cuLinkAddData(state, CU_JIT_INPUT_FATBINARY, const_cast<void*>(parts[i]),
                                           header->bytes + header->rest, nullptr, 0, nullptr, nullptr);
    }
    void* image = nullptr;
    size_t bytes;
    if (result == CUDA_SUCCESS) result = driver::cuLinkComplete(state, &image, &bytes);
    if (result == CUDA_SUCCESS) result = load(image, library);
    driver::cuLinkDestroy(state);
    return result;
}

// nvcc leaves linking to the program's start where it was asked for PTX.  The last part is then its runtime
// library for launches from the device, which it adds to every program, and which may have nothing for this
// device; what needs it does not link without.
CUresult link(const void* const* parts, CUlibrary& library) {
    size_t count = 0;
    while (parts[count]) ++count;
    const CUresult result = link(parts, count, library);
    if (for_another_device(result) && count > 1 && link(parts, count - 1, library) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    return result;
}

CUresult loaded(Image& image, CUlibrary& library) {
    std::lock_guard lock(image.loading);
    if (image.refused) return image.refused;
    if (!image.library) {
        static const int at_end = std::atexit([] { ending = true; });
        (void)at_end;
        const Wrapper& wrapper = *image.wrapper;
        CUresult result = load(wrapper.image, image.library);
        if (for_another_device(result) && wrapper.version == 2 && wrapper.parts && *wrapper.parts)
            result = link(wrapper.parts, image.library);
        if (result) {
            image.library = nullptr;
            if (for_another_device(result)) image.refused = result;
            return result;
        }
    }
    library = image.library;
    return CUDA_SUCCESS;
}

Image& image_of(void** handle) { return *reinterpret_cast<Image*>(handle); }

template <class Found>
void registered(void** handle, const void* symbol, std::unordered_map<const void*, Found>& in, Found found) {
    Program& all = program();
    std::unique_lock lock(all.mutex);
    all.images[&image_of(handle)].push_back(symbol);
    in.insert_or_assign(symbol, std::move(found));
}

CUresult address_of(const Variable& variable, CUdeviceptr& address, size_t& size) {
    CUlibrary library;
    if (CUresult result = loaded(*variable.image, library)) return result;
    if (variable.pointer) return driver::cuLibraryGetManaged(&address, &size, library, variable.name.c_str());
    return driver::cuLibraryGetGlobal(&address, &size, library, variable.name.c_str());
}

}  // namespace

CUresult find_kernel(const void* function, CUfunction& found) {
    Program& all = program();
    Image* image;
    std::string name;
    {
        std::shared_lock lock(all.mutex);
        const auto known = all.kernels.find(function);
        if (known == all.kernels.end()) {  // a handle, which the driver knows
            found = static_cast<CUfunction>(const_cast<void*>(function));
            return function ? CUDA_SUCCESS : static_cast<CUresult>(cudaErrorInvalidDeviceFunction);
        }
        if (known->second.handle) {
            found = reinterpret_cast<CUfunction>(known->second.handle);
            return CUDA_SUCCESS;
        }
        image = known->second.image;
        name = known->second.name;
    }
    CUlibrary library;
    if (CUresult result = loaded(*image, library)) return result;
    CUkernel kernel;
    if (CUresult result = driver::cuLibraryGetKernel(&kernel, library, name.c_str()))
        return result == CUDA_ERROR_NOT_FOUND ? static_cast<CUresult>(cudaErrorInvalidDeviceFunction)
                                              : result;
    std::unique_lock lock(all.mutex);
    if (const auto known = all.kernels.find(function); known != all.kernels.end())
        known->second.handle = kernel;
    all.known[kernel] = function;
    found = reinterpret_cast<CUfunction>(kernel);
    return CUDA_SUCCESS;
}

CUresult find_function(const void* function, CUfunction& found) {
    CUfunction kernel;
    if (CUresult result = find_kernel(function, kernel)) return result;
    Program& all = program();
    {
        std::shared_lock lock(all.mutex);
        if (!all.known.count(kernel)) {  // not an image's of the program
            const CUresult result = driver::cuKernelGetFunction(&found, reinterpret_cast<CUkernel>(kernel));
            if (result) found = kernel;
            return CUDA_SUCCESS;
        }
    }
    if (CUresult result = driver::cuKernelGetFunction(&found, reinterpret_cast<CUkernel>(kernel)))
        return result;
    std::unique_lock lock(all.mutex);
    all.known[found] = function;
    return CUDA_SUCCESS;
}

const void* known_as(CUfunction found) {
    Program& all = program();
    std::shared_lock lock(all.mutex);
    const auto known = all.known.find(found);
    return known == all.known.end() ? found : known->second;
}

cudaError_t find_variable(const void* symbol, CUdeviceptr& address, size_t& size) {
    Program& all = program();
    Variable variable;
    {
        std::shared_lock lock(all.mutex);
        const auto known = all.variables.find(symbol);
        if (known == all.variables.end()) return fail(cudaErrorInvalidSymbol);
        variable = known->second;
    }
    const CUresult result = address_of(variable, address, size);
    return result == CUDA_ERROR_NOT_FOUND ? fail(cudaErrorInvalidSymbol) : done(result);
}

void forget_images() {
    Program& all = program();
    std::unique_lock lock(all.mutex);
    for (auto& [image, symbols] : all.images) {
        std::lock_guard loading(image->loading);
        if (image->library) driver::cuLibraryUnload(image->library);
        image->library = nullptr;
    }
    for (auto& [function, kernel] : all.kernels) kernel.handle = nullptr;
    all.known.clear();
}

}  // namespace gpukernel::cudart

using namespace gpukernel::cudart;

API void** __cudaRegisterFatBinary(void* wrapper) {
    Image* image = new Image{static_cast<const Wrapper*>(wrapper), {}};
    Program& all = program();
    std::unique_lock lock(all.mutex);
    all.images[image];
    return reinterpret_cast<void**>(image);
}

API void __cudaRegisterFatBinaryEnd(void**) {}

API void __cudaUnregisterFatBinary(void** handle) {
    if (!handle) return;
    Image* image = &image_of(handle);
    Program& all = program();
    std::unique_lock lock(all.mutex);
    for (const void* symbol : all.images[image]) {
        if (const auto known = all.kernels.find(symbol);
            known != all.kernels.end() && known->second.image == image)
            all.kernels.erase(known);
        if (const auto known = all.variables.find(symbol);
            known != all.variables.end() && known->second.image == image)
            all.variables.erase(known);
    }
    all.images.erase(image);
    if (image->library && !ending) driver::cuLibraryUnload(image->library);
    delete image;
}

API void __cudaRegisterFunction(void** handle, const char* function, char*, const char* name, int, uint3*,
                                uint3*, dim3*, dim3*, int*) {
    registered(handle, function, program().kernels, Kernel{&image_of(handle), name});
}

API void __cudaRegisterVar(void** handle, char* variable, char*, const char* name, int, size_t size, int,
                           int) {
    registered(handle, variable, program().variables, Variable{&image_of(handle), name, size, nullptr});
}

API void __cudaRegisterManagedVar(void** handle, void** pointer, char*, const char* name, int, size_t size,
                                  int, int) {
    registered(handle, pointer, program().variables, Variable{&image_of(handle), name, size, pointer});
}

// Called before a managed variable's first use in the program: from now on it is where the driver has put it.
API char __cudaInitModule(void** handle) {
    if (enter()) return 0;
    std::vector<Variable> managed;
    {
        Program& all = program();
        std::shared_lock lock(all.mutex);
        for (const void* symbol : all.images[&image_of(handle)])
            if (const auto known = all.variables.find(symbol);
                known != all.variables.end() && known->second.pointer)
                managed.push_back(known->second);
    }
    for (const Variable& variable : managed) {
        CUdeviceptr address;
        size_t size;
        if (done(address_of(variable, address, size))) {
            std::fprintf(
                stderr,
                "gpukernel: the __managed__ variable %s cannot be shared with a slice over the network; use "
                "cudaMallocManaged\n",
                variable.name.c_str());
            return 0;
        }
        *variable.pointer = reinterpret_cast<void*>(address);
    }
    return 1;
}

#if MAJOR >= 12
// The handle is the program's function: it outlives cudaDeviceReset, and nothing is loaded before the launch.
API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
    return cudaSuccess;
}

API cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    if (!kernel) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUfunction found;
    if (CUresult result = find_kernel(function, found)) return done(result);
    *kernel = reinterpret_cast<cudaKernel_t>(found);
    return cudaSuccess;
}
#endif

API cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
    if (!function) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    return done(find_function(symbol, *function));
}

API cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
    if (!address) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    size_t size;
    CUdeviceptr found;
    if (cudaError_t error = find_variable(symbol, found, size)) return error;
    *address = reinterpret_cast<void*>(found);
    return cudaSuccess;
}

API cudaError_t cudaGetSymbolSize(size_t* size, const void* symbol) {
    if (!size) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUdeviceptr address;
    return find_variable(symbol, address, *size);
}
