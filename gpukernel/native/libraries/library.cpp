#include "libraries/library.h"

#include <dlfcn.h>

#include <cstdio>
#include <mutex>
#include <set>

namespace gpukernel::libraries {

namespace {
constexpr size_t MOST_TOLD = 1000;
}

void* driver() {
    static void* const loaded = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return loaded;
}

void* find_in_driver(const char* name) { return driver() ? ::dlsym(driver(), name) : nullptr; }

void complain(const std::string& sentence, bool once) {
    static std::mutex* const mutex = new std::mutex;  // threads may be inside at exit
    static auto* const told = new std::set<std::string>;
    std::lock_guard lock(*mutex);
    // Numbers of a program's choice stand in sentences: neither this set nor a worker.log grows by them.
    if (once && (told->size() == MOST_TOLD || !told->insert(sentence).second)) return;
    std::fprintf(stderr, "gpukernel: %s\n", sentence.c_str());
}

int unsupported(const char* name) {
    complain(std::string(name) + " is not supported on a slice (docs/compatibility.md, “Math libraries”)");
    return NOT_SUPPORTED_STATUS;
}

}  // namespace gpukernel::libraries
