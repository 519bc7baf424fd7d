#include "direct/real.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "common/lease_file.h"

extern "C" void* gpukernel_direct_table[];

namespace gpukernel::direct {

Real real;

namespace {
// Made when first asked for, since `load` runs before the constructors of variables; and never destroyed,
// since programs may call while they end.
std::string& path() {
    static auto& text = *new std::string;
    return text;
}
std::string& missing_because() {
    static auto& text = *new std::string;
    return text;
}

template <class... Arguments>
CUresult lacking(Arguments...) {
    return missing_because().empty() ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NO_DEVICE;
}
template <class... Arguments>
auto stand_in(CUresult (*)(Arguments...)) {
    return &lacking<Arguments...>;
}

bool same_file(const std::string& one, const char* other) {
    struct stat a, b;
    return ::stat(one.c_str(), &a) == 0 && ::stat(other, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

void* open_driver() {
    const char* named = std::getenv("GPUKERNEL_DRIVER");
    std::string error = "this process has no slice: start it with 'gpukernel run --direct'";
    wire::LeaseFile lease;
    wire::find_lease(lease, error);
    path() = named && *named ? named : lease.driver;
    if (path().empty()) {
        missing_because() = error;
        return nullptr;
    }
    Dl_info self{};
    ::dladdr(reinterpret_cast<void*>(&no_driver), &self);
    void* library = nullptr;
    // A full path: this library has the driver's name, and would be found in its place.
    if (path().front() != '/')
        missing_because() =
            "the NVIDIA driver's library must be named by its full path, not '" + path() + "'";
    else if (self.dli_fname && same_file(path(), self.dli_fname))
        missing_because() = path() + " is gpukernel's own library, not the NVIDIA driver's";
    else if (!(library = ::dlopen(path().c_str(), RTLD_NOW | RTLD_LOCAL)))
        missing_because() = "the NVIDIA driver's library cannot be loaded: " + std::string(::dlerror());
    return library;
}

// Before anything of the program: whoever loads this library by name has a driver at once.
__attribute__((constructor(101))) void load() {
    void* library = open_driver();
    const auto found = [&](const char* name) { return library ? ::dlsym(library, name) : nullptr; };
#define GPUKERNEL_INTERCEPTED(name)                                \
    if (void* symbol = found(#name))                               \
        real.name = reinterpret_cast<decltype(real.name)>(symbol); \
    else                                                           \
        real.name = stand_in(static_cast<decltype(real.name)>(nullptr));
#include "direct/called.inc"
#include "intercepted.inc"
#undef GPUKERNEL_INTERCEPTED
    if (!library) return;
    for (size_t i = 0; passed_on[i]; ++i)
        if (void* symbol = ::dlsym(library, passed_on[i]))
            gpukernel_direct_table[i] = symbol;
        else
            gpukernel_direct_table[i] = reinterpret_cast<void*>(&lacking<>);
}
}  // namespace

CUresult no_driver() { return CUDA_ERROR_NO_DEVICE; }
const std::string& no_driver_because() { return missing_because(); }
const std::string& real_driver_path() { return path(); }

void complain(const std::string& sentence) {
    const std::string line = "gpukernel: " + sentence + "\n";
    [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace gpukernel::direct
