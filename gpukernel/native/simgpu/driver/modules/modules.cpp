// Modules, libraries, functions, the linker (driver API chapters "Module Management", "Library Management").
#include <algorithm>

#include "simgpu/driver/memory/managed.h"
#include "simgpu/driver/modules/images.h"
#include "simgpu/driver/modules/launch.h"

using namespace gpukernel::simgpu;
using gpukernel::libcuda::JitLogs;
using gpukernel::libcuda::limited_registers;

namespace {
// Bytes of the host's memory for each byte of PTX, of which the shortest instruction has four: while it is
// parsed, and for as long as the decoded module is there.
constexpr uint64_t WHILE_DECODED = 48, DECODED = 20;

uint64_t bytes_of(const std::vector<std::string>& texts) {
    uint64_t sum = 0;
    for (const std::string& text : texts) sum += text.size();
    return sum;
}

void write(const JitLogs& logs, const std::string& log) {
    if (!logs.write(log)) log_line(log);
}

constexpr uint64_t CODE =
    64 << 10;  // of the device's memory for one kernel, at least, as NVIDIA's driver has it

int target_of(const Device& device) { return device.model->major * 10 + device.model->minor; }

CUresult load(Device* device, const void* data, size_t bytes, const JitLogs& logs, Loaded*& loaded) {
    Image image = read_image(data, bytes, target_of(*device));
    if (image.error != CUDA_SUCCESS) {
        write(logs, image.message);
        return image.error;
    }
    auto fresh = std::make_unique<Loaded>();
    image.share.shrink(0);  // which is charged with the whole now
    fresh->device = device;
    uint64_t decoded = 0, kept = 0;
    const auto charge = [&](uint64_t now, uint64_t later) {
        decoded = now * DECODED, kept = later;
        return fresh->share.grow(now * WHILE_DECODED + later);
    };
    std::string log;
    std::vector<std::string_view> texts(image.texts.begin(), image.texts.end());
    Result result = load_module(texts, *device->memory, target_of(*device), device->model->multiprocessors,
                                fresh->image, log, charge);
    if (log.empty()) log = result.message;
    write(logs, result ? "" : log);
    if (!result) return code_of(result.status);
    fresh->share.shrink(decoded + kept);
    for (const std::string& name : fresh->image->kernels()) {
        fresh->functions.emplace_back(new Kernel{fresh.get(), fresh->image->kernel(name)});
        driver()->functions.add(fresh->functions.back().get());
    }
    loaded = driver()->modules.add(fresh.release());
    return CUDA_SUCCESS;
}

CUresult unload(void* handle) {
    GPUKERNEL_HERE(device);
    auto* loaded = driver()->modules.get<Loaded>(handle);
    if (!loaded) return CUDA_ERROR_INVALID_HANDLE;
    CUresult error = loaded->device->synchronize();
    driver()->modules.remove(loaded);
    drop_references(*loaded);
    for (auto& function : loaded->functions) driver()->functions.remove(function.get());
    for (const GlobalInfo& global : loaded->image->globals())
        if (global.managed) forget_managed(loaded->device, global.address);
    for (uint64_t code : loaded->code) loaded->device->memory->free(code);
    delete loaded;
    return error;
}

// A library's kernel is no function, as with NVIDIA's driver: launches take either, and what asks for a
// function's parameters and attributes takes no kernel.
constexpr uintptr_t KERNEL = 1;

Kernel* function_of(const void* handle) {
    return driver() ? driver()->functions.get<Kernel>(handle) : nullptr;
}
Kernel* kernel_of(CUkernel handle) {
    const auto number = reinterpret_cast<uintptr_t>(handle);
    return number & KERNEL ? function_of(reinterpret_cast<void*>(number - KERNEL)) : nullptr;
}
CUkernel kernel_named(const void* function) {
    return reinterpret_cast<CUkernel>(reinterpret_cast<uintptr_t>(function) + KERNEL);
}

// Nor is a library's module, in the context, the library.
constexpr uintptr_t MODULE = 2;

Loaded* library_of(const void* handle) { return driver() ? driver()->modules.get<Loaded>(handle) : nullptr; }
CUmodule module_named(const Loaded* loaded) {
    return reinterpret_cast<CUmodule>(reinterpret_cast<uintptr_t>(loaded) +
                                      (loaded->of_library ? MODULE : 0));
}

CUresult count_functions(unsigned* count, Loaded* loaded) {
    GPUKERNEL_HERE(device);
    if (!loaded || !count) return CUDA_ERROR_INVALID_HANDLE;
    *count = loaded->functions.size();
    return CUDA_SUCCESS;
}

CUresult function_named(Loaded* loaded, const char* name, void** function) {
    GPUKERNEL_HERE(device);
    if (!loaded) return CUDA_ERROR_INVALID_HANDLE;
    if (!name || !function) return CUDA_ERROR_INVALID_VALUE;
    for (auto& candidate : loaded->functions)
        if (candidate->info->name == name) {
            *function = candidate.get();
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult global_named(Loaded* loaded, const char* name, CUdeviceptr* address, size_t* bytes,
                      bool managed_only = false) {
    GPUKERNEL_HERE(device);
    if (!loaded) return CUDA_ERROR_INVALID_HANDLE;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    for (const GlobalInfo& global : loaded->image->globals())
        if (global.name == name && (global.managed || !managed_only)) {
            if (global.managed) remember_managed(device, global.address, global.bytes);
            if (address) *address = global.address;
            if (bytes) *bytes = global.bytes;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

template <class Handle>
CUresult enumerate(Handle* out, unsigned room, Loaded* loaded) {
    GPUKERNEL_HERE(device);
    if (!loaded) return CUDA_ERROR_INVALID_HANDLE;
    for (unsigned i = 0; i < std::min<size_t>(room, loaded->functions.size()); ++i)
        if constexpr (std::is_same_v<Handle, CUkernel>)
            out[i] = kernel_named(loaded->functions[i].get());
        else
            out[i] = reinterpret_cast<Handle>(loaded->functions[i].get());
    return CUDA_SUCCESS;
}

}  // namespace

Loaded* gpukernel::simgpu::module_of(const void* handle) {
    const auto number = reinterpret_cast<uintptr_t>(handle);
    return library_of(number & MODULE ? reinterpret_cast<void*>(number - MODULE) : handle);
}

Kernel* gpukernel::simgpu::launchable(const void* handle) {
    Kernel* const function = function_of(handle);
    return function ? function : kernel_of(static_cast<CUkernel>(const_cast<void*>(handle)));
}

CUresult gpukernel::simgpu::prepare(Kernel& kernel) {
    if (kernel.known.load(std::memory_order_acquire)) return CUDA_SUCCESS;
    Loaded& owner = *kernel.owner;
    std::lock_guard lock(owner.reading);
    const uint64_t bytes = owner.image->unread(kernel.info->name), before = owner.share.bytes();
    if (!owner.share.grow(before + bytes * WHILE_DECODED)) {
        log_line("the host has no memory for the kernel " + kernel.info->name);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    std::string log;
    const Result result = owner.image->prepare(kernel.info->name, log);
    owner.share.shrink(before + bytes * DECODED);
    if (!result) {
        log_line(kernel.info->name + ": " + result.message);
        return code_of(result.status);
    }
    if (const char* loading = std::getenv("GPUKERNEL_SIMGPU_MODULE_LOADING");
        loading && loading == std::string_view("LAZY")) {
        const auto code = owner.device->memory->allocate(std::max(bytes, CODE));
        if (!code) return CUDA_ERROR_OUT_OF_MEMORY;
        owner.code.push_back(*code);
    }
    kernel.known.store(true, std::memory_order_release);
    return CUDA_SUCCESS;
}

namespace {
CUresult attribute_of(int* value, CUfunction_attribute attribute, Kernel* f) {
    GPUKERNEL_HERE(device);
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = prepare(*f); error != CUDA_SUCCESS) return error;
    const int target = target_of(*device);
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
            *value = f->info->max_threads;
            break;
        case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
            *value = f->info->static_shared_bytes;
            break;
        case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
            *value = f->info->constant_bytes;
            break;
        case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
            *value = f->info->local_bytes;
            break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS:
            *value = std::clamp<int>(f->info->registers, 16, 255);
            break;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
            *value = target;
            break;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            *value = f->dynamic_shared_limit;
            break;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            *value = f->carveout;
            break;
        case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
            *value = f->cluster_must_be_set;
            break;
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
            *value = static_cast<int>(f->cluster.x);
            break;
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
            *value = static_cast<int>(f->cluster.y);
            break;
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
            *value = static_cast<int>(f->cluster.z);
            break;
        case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
            *value = f->large_clusters;
            break;
        case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
            *value = f->cluster_policy;
            break;
        default:
            if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
            *value = 0;
    }
    return CUDA_SUCCESS;
}

CUresult set_attribute(CUfunction_attribute attribute, int value, Kernel* f) {
    GPUKERNEL_HERE(device);
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (CUresult error = prepare(*f); error != CUDA_SUCCESS) return error;
    auto set = [value](auto& where, int most) {
        if (value < 0 || value > most) return CUDA_ERROR_INVALID_VALUE;
        where = static_cast<std::remove_reference_t<decltype(where)>>(value);
        return CUDA_SUCCESS;
    };
    const auto declared = static_cast<int64_t>(f->info->static_shared_bytes);
    auto require =
        [&](uint32_t& side) {  // a compiled-in size stays (CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH)
            return f->info->cluster.x ? CUDA_ERROR_NOT_PERMITTED : set(side, INT_MAX);
        };
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            f->carveout = value;
            return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            return set(f->dynamic_shared_limit,
                       static_cast<int>(device->model->shared_per_block_optin - declared));
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
            return require(f->cluster.x);
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
            return require(f->cluster.y);
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
            return require(f->cluster.z);
        case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
            return set(f->cluster_must_be_set, 1);
        case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
            return set(f->large_clusters, 1);
        case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
            return set(f->cluster_policy, CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING);
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult name_of(Kernel* f, const char** name) {
    if (!name || !f) return CUDA_ERROR_INVALID_HANDLE;
    *name = f->info->name.c_str();
    return CUDA_SUCCESS;
}

CUresult parameter_of(Kernel* f, size_t index, size_t* offset, size_t* size) {
    GPUKERNEL_HERE(device);
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (index >= f->info->params.size()) return CUDA_ERROR_INVALID_VALUE;
    if (offset) *offset = f->info->params[index].offset;
    if (size) *size = f->info->params[index].size;
    return CUDA_SUCCESS;
}

struct Link {
    std::vector<std::string> texts;
    std::string image;
    JitLogs logs;
    HostShare share = {};  // of texts and image
};
}  // namespace

CUresult gpukernel::libcuda::load_module(const void* image, size_t bytes, const JitLogs& logs,
                                         CUmodule& module) {
    GPUKERNEL_HERE(device);
    Loaded* loaded;
    CUresult error = load(device, image, bytes, logs, loaded);
    if (error == CUDA_SUCCESS) module = reinterpret_cast<CUmodule>(loaded);
    return error;
}
CUresult CUDAAPI cuModuleUnload(CUmodule hmod) { return unload(hmod); }
CUresult CUDAAPI cuModuleGetFunction(CUfunction* hfunc, CUmodule hmod, const char* name) {
    return function_named(module_of(hmod), name, reinterpret_cast<void**>(hfunc));
}
CUresult CUDAAPI cuModuleGetGlobal(CUdeviceptr* dptr, size_t* bytes, CUmodule hmod, const char* name) {
    return global_named(module_of(hmod), name, dptr, bytes);
}
CUresult CUDAAPI cuModuleGetFunctionCount(unsigned int* count, CUmodule mod) {
    return count_functions(count, module_of(mod));
}
CUresult CUDAAPI cuModuleEnumerateFunctions(CUfunction* functions, unsigned int numFunctions, CUmodule mod) {
    return enumerate(functions, numFunctions, module_of(mod));
}
CUresult gpukernel::libcuda::load_library(const void* image, size_t bytes, const JitLogs& logs,
                                          CUlibrary& library) {
    simgpu::Device* const device = current_context() ? current_context()->device : driver()->devices[0].get();
    Loaded* loaded;
    CUresult error = load(device, image, bytes, logs, loaded);
    if (error != CUDA_SUCCESS) return error;
    loaded->of_library = true;
    library = reinterpret_cast<CUlibrary>(loaded);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuLibraryUnload(CUlibrary library) { return unload(library); }
CUresult CUDAAPI cuLibraryGetKernel(CUkernel* pKernel, CUlibrary library, const char* name) {
    const CUresult result = function_named(library_of(library), name, reinterpret_cast<void**>(pKernel));
    if (result == CUDA_SUCCESS) *pKernel = kernel_named(*pKernel);
    return result;
}
CUresult CUDAAPI cuLibraryGetKernelCount(unsigned int* count, CUlibrary lib) {
    return count_functions(count, library_of(lib));
}
CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int numKernels, CUlibrary lib) {
    return enumerate(kernels, numKernels, library_of(lib));
}
CUresult CUDAAPI cuLibraryGetModule(CUmodule* pMod, CUlibrary library) {
    GPUKERNEL_HERE(device);
    const Loaded* loaded = library_of(library);
    if (!pMod || !loaded) return CUDA_ERROR_INVALID_HANDLE;
    *pMod = module_named(loaded);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr* dptr, size_t* bytes, CUlibrary library, const char* name) {
    return global_named(library_of(library), name, dptr, bytes);
}

CUresult CUDAAPI cuLibraryGetManaged(CUdeviceptr* dptr, size_t* bytes, CUlibrary library, const char* name) {
    return global_named(library_of(library), name, dptr, bytes, true);
}

CUresult CUDAAPI cuKernelGetFunction(CUfunction* pFunc, CUkernel kernel) {
    GPUKERNEL_HERE(device);
    Kernel* f = kernel_of(kernel);
    if (!pFunc || !f) return CUDA_ERROR_INVALID_HANDLE;
    *pFunc = reinterpret_cast<CUfunction>(f);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuKernelGetLibrary(CUlibrary* pLib, CUkernel kernel) {
    GPUKERNEL_HERE(device);
    Kernel* f = kernel_of(kernel);
    if (!pLib || !f) return CUDA_ERROR_INVALID_HANDLE;
    *pLib = reinterpret_cast<CUlibrary>(f->owner);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncGetModule(CUmodule* hmod, CUfunction hfunc) {
    GPUKERNEL_HERE(device);
    Kernel* f = function_of(hfunc);
    if (!hmod || !f) return CUDA_ERROR_INVALID_HANDLE;
    *hmod = module_named(f->owner);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncGetName(const char** name, CUfunction hfunc) {
    return name_of(function_of(hfunc), name);
}
CUresult CUDAAPI cuKernelGetName(const char** name, CUkernel hfunc) {
    return name_of(kernel_of(hfunc), name);
}
CUresult CUDAAPI cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t* paramOffset,
                                    size_t* paramSize) {
    return parameter_of(function_of(func), paramIndex, paramOffset, paramSize);
}
CUresult CUDAAPI cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t* paramOffset,
                                      size_t* paramSize) {
    return parameter_of(kernel_of(kernel), paramIndex, paramOffset, paramSize);
}
CUresult CUDAAPI cuFuncGetAttribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) {
    return attribute_of(pi, attrib, function_of(hfunc));
}
CUresult CUDAAPI cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
    return set_attribute(attrib, value, function_of(hfunc));
}
CUresult CUDAAPI cuKernelGetAttribute(int* pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) {
    return attribute_of(pi, attrib, kernel_of(kernel));
}
CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev) {
    return set_attribute(attrib, val, kernel_of(kernel));
}
CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) {
    return function_of(hfunc) ? here().error : CUDA_ERROR_INVALID_HANDLE;
}
CUresult CUDAAPI cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) {
    return kernel_of(kernel) ? here().error : CUDA_ERROR_INVALID_HANDLE;
}
CUresult CUDAAPI cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
    if (!state || !function_of(function)) return CUDA_ERROR_INVALID_HANDLE;
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncLoad(CUfunction function) {
    Kernel* f = function_of(function);
    return f ? prepare(*f) : CUDA_ERROR_INVALID_HANDLE;
}

// --- the linker: joins PTX texts ---

CUresult CUDAAPI cuLinkCreate(unsigned int numOptions, CUjit_option* options, void** optionValues,
                              CUlinkState* stateOut) {
    GPUKERNEL_HERE(device);
    if (!stateOut) return CUDA_ERROR_INVALID_VALUE;
    *stateOut = reinterpret_cast<CUlinkState>(
        driver()->links.add(new Link{{}, {}, JitLogs(numOptions, options, optionValues)}));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLinkAddData(CUlinkState state, CUjitInputType type, void* data, size_t size,
                               const char* name, unsigned int numOptions, CUjit_option* options,
                               void** optionValues) {
    GPUKERNEL_HERE(device);
    auto* link = driver()->links.get<Link>(state);
    if (!link) return CUDA_ERROR_INVALID_HANDLE;
    Image image = read_image(data, size, target_of(*device));
    if (image.error != CUDA_SUCCESS) {
        write(link->logs, image.message);
        return image.error;
    }
    image.share.shrink(0);
    if (!link->share.grow(link->share.bytes() + 2 * bytes_of(image.texts))) {
        write(link->logs, "the host has no memory for so much to link");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (std::string& text : image.texts) {
        std::string limited = limited_registers(text, link->logs);
        link->texts.push_back(limited.empty() ? std::move(text) : std::move(limited));
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLinkComplete(CUlinkState state, void** cubinOut, size_t* sizeOut) {
    GPUKERNEL_HERE(device);
    auto* link = driver()->links.get<Link>(state);
    if (!link) return CUDA_ERROR_INVALID_HANDLE;
    // Loading checks the image here, where people look at the linker's log.
    std::unique_ptr<Module> module;
    std::string log;
    std::vector<std::string_view> texts(link->texts.begin(), link->texts.end());
    HostShare decoded;
    if (!decoded.grow(bytes_of(link->texts) * WHILE_DECODED)) {
        write(link->logs, "the host has no memory for a module of this size");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    Result result =
        load_module(texts, *device->memory, target_of(*device), device->model->multiprocessors, module, log);
    write(link->logs, result ? "" : log.empty() ? result.message : log);
    if (!result) return code_of(result.status);
    link->image = link_image(link->texts);
    if (cubinOut) *cubinOut = link->image.data();
    if (sizeOut) *sizeOut = link->image.size();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLinkDestroy(CUlinkState state) {
    auto* link = driver() ? driver()->links.get<Link>(state) : nullptr;
    if (!link) return CUDA_ERROR_INVALID_HANDLE;
    driver()->links.remove(link);
    delete link;
    return CUDA_SUCCESS;
}
