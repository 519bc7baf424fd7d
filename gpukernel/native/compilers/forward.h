// A library under another one's name: what it does not define itself goes to the original.
// `FORWARDED(X)` lists the names; the auditor says where the original is.
#pragma once

#include <dlfcn.h>

#include <cstdio>

#define GPUKERNEL_TEXT_(x) #x
#define GPUKERNEL_TEXT(x) GPUKERNEL_TEXT_(x)

// Each name is a jump through a slot of its own.
#define GPUKERNEL_SLOT(name)                                                                           \
    extern "C" [[gnu::visibility("hidden")]] void* gpukernel_slot_##name;                              \
    void* gpukernel_slot_##name;                                                                       \
    asm(".text\n.globl " #name "\n.type " #name ",@function\n" #name ":\n\tjmp *gpukernel_slot_" #name \
        "(%rip)\n.size " #name ",.-" #name "\n");

namespace gpukernel::compilers {

// Opens the library that `name` is the name of, NVIDIA's; null and a sentence where that cannot be.
inline void* open_original(const char* name) {
    char asked[64];
    std::snprintf(asked, sizeof asked, "gpukernel-original:%s", name);
    void* library = dlopen(asked, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        std::fprintf(
            stderr,
            "gpukernel: NVIDIA's %s cannot be loaded (%s); this one hands its work to simulated GPUs and "
            "is found through LD_AUDIT only\n",
            name, dlerror());
    return library;
}

// Returns the original's function `name`, or `instead`.
template <class Function>
Function* of_original(void* library, const char* name, Function* instead) {
    void* found = library ? dlsym(library, name) : nullptr;
    return found ? reinterpret_cast<Function*>(found) : instead;
}

}  // namespace gpukernel::compilers
