// NVRTC as programs on simulated devices see it: NVIDIA's own, but a cubin is the PTX that it was made from.
// NVRTC keeps the PTX of a program whatever it was compiled for ("NVRTC", nvrtcGetPTX), and a driver loads
// either.  A program that was compiled before, in this process or another, is not compiled again
// (kept_programs.h): NVIDIA's library gets it where somebody asks for more than its PTX.
#include <sys/stat.h>

#include <cstddef>
#include <cstring>
#include <mutex>

#include "compilers/forward.h"
#include "compilers/kept_programs.h"

#define FORWARDED_BY_ALL(X)      \
    X(nvrtcGetErrorString)       \
    X(nvrtcGetNumSupportedArchs) \
    X(nvrtcGetPCHHeapSize)       \
    X(nvrtcGetSupportedArchs)    \
    X(nvrtcSetPCHHeapSize)       \
    X(nvrtcVersion)              \
    X(__nvrtcCPEx)
// What only a program that NVIDIA's library has compiled answers.
#define OF_COMPILED_BY_ALL(X)  \
    X(nvrtcGetLTOIR)           \
    X(nvrtcGetLTOIRSize)       \
    X(nvrtcGetOptiXIR)         \
    X(nvrtcGetOptiXIRSize)     \
    X(nvrtcGetPCHCreateStatus) \
    X(nvrtcGetPCHHeapSizeRequired)
#if MAJOR == 12
#define FORWARDED(X) FORWARDED_BY_ALL(X)
#define OF_COMPILED(X) OF_COMPILED_BY_ALL(X) X(nvrtcGetNVVM) X(nvrtcGetNVVMSize)
#else
#define FORWARDED(X)              \
    FORWARDED_BY_ALL(X)           \
    X(nvrtcGetBundledHeadersInfo) \
    X(nvrtcInstallBundledHeaders) \
    X(nvrtcRemoveBundledHeaders)  \
    X(__nvrtcNvvmHandle)
#define OF_COMPILED(X) OF_COMPILED_BY_ALL(X) X(nvrtcGetTileIR) X(nvrtcGetTileIRSize)
#endif
// What is done here and there.
#define CALLED(X)             \
    X(nvrtcAddNameExpression) \
    X(nvrtcCompileProgram)    \
    X(nvrtcCreateProgram)     \
    X(nvrtcDestroyProgram)    \
    X(nvrtcGetCUBINSize)      \
    X(nvrtcGetLoweredName)    \
    X(nvrtcGetPTX)            \
    X(nvrtcGetPTXSize)        \
    X(nvrtcGetProgramLog)     \
    X(nvrtcGetProgramLogSize) \
    X(nvrtcSetFlowCallback)

FORWARDED(GPUKERNEL_SLOT)

#define EXPORTED extern "C" [[gnu::visibility("default")]]

namespace {
using namespace gpukernel::compilers;

constexpr int NVRTC_SUCCESS = 0, NVRTC_ERROR_INVALID_INPUT = 3, NVRTC_ERROR_INTERNAL_ERROR = 11;
int missing() { return NVRTC_ERROR_INTERNAL_ERROR; }
const char* no_sentence(int) { return "NVIDIA's NVRTC cannot be loaded"; }

// NVIDIA's functions, which take pointers and numbers and return a result.
template <class... Arguments>
int call(void* function, Arguments... arguments) {
    return reinterpret_cast<int (*)(Arguments...)>(function)(arguments...);
}
struct Originals {
#define DECLARE(name) void* name = reinterpret_cast<void*>(missing);
    CALLED(DECLARE)
    OF_COMPILED(DECLARE)
} original;

std::string library_is;  // its version and file; empty: nothing is kept

// When the library is loaded, behind what stands above.
bool connect() {
    void* library = open_original("libnvrtc.so." GPUKERNEL_TEXT(MAJOR));
#define CONNECT(name) \
    gpukernel_slot_##name = reinterpret_cast<void*>(of_original<int()>(library, #name, missing));
    FORWARDED(CONNECT)
#define FIND(name) original.name = reinterpret_cast<void*>(of_original<int()>(library, #name, missing));
    CALLED(FIND)
    OF_COMPILED(FIND)
    if (!library) gpukernel_slot_nvrtcGetErrorString = reinterpret_cast<void*>(no_sentence);
    Dl_info place;
    struct stat is;
    int major = 0, minor = 0;
    if (library && dladdr(original.nvrtcCompileProgram, &place) && !stat(place.dli_fname, &is) &&
        call(gpukernel_slot_nvrtcVersion, &major, &minor) == NVRTC_SUCCESS)
        library_is = std::to_string(major) + "." + std::to_string(minor) + " " + std::to_string(is.st_size) +
                     " " + std::to_string(is.st_mtim.tv_sec);
    return library != nullptr;
}
const bool connected = connect();

struct Program {
    Given given;
    bool watched = false;      // the program may end its compilation
    std::optional<Made> made;  // before: NVIDIA's library has not compiled it
};
std::mutex mutex;
std::map<void*, Program> programs;

int compile(void* program, const std::vector<std::string>& options) {
    std::vector<const char*> words;
    for (const std::string& option : options) words.push_back(option.c_str());
    return call(original.nvrtcCompileProgram, program, static_cast<int>(words.size()), words.data());
}

// What was found for it; none: NVIDIA's library answers.
std::optional<Made> found(void* program) {
    const std::lock_guard lock(mutex);
    const auto at = programs.find(program);
    return at == programs.end() ? std::nullopt : at->second.made;
}
// NVIDIA's library compiles what was only found until now.
void make_original(void* program) {
    std::vector<std::string> options;
    {
        const std::lock_guard lock(mutex);
        const auto at = programs.find(program);
        if (at == programs.end() || !at->second.made) return;
        options = at->second.given.options;
        at->second.made.reset();
    }
    compile(program, options);
}

std::string text_of(void* size_of, void* get, void* program) {
    size_t size = 0;
    if (call(size_of, program, &size) != NVRTC_SUCCESS || !size) return {};
    std::string text(size, '\0');
    return call(get, program, text.data()) == NVRTC_SUCCESS ? text : std::string();
}
// What it says of a program that it has compiled.
Made made_of(void* program, const Given& given) {
    Made made;
    made.ptx = text_of(original.nvrtcGetPTXSize, original.nvrtcGetPTX, program);
    made.log = text_of(original.nvrtcGetProgramLogSize, original.nvrtcGetProgramLog, program);
    size_t cubin = 0;
    made.for_a_gpu = call(original.nvrtcGetCUBINSize, program, &cubin) == NVRTC_SUCCESS && cubin;
    for (const std::string& expression : given.expressions) {
        const char* name = nullptr;
        if (call(original.nvrtcGetLoweredName, program, expression.c_str(), &name) == NVRTC_SUCCESS)
            made.lowered[expression] = name;
    }
    return made;
}

int size_of(const std::string& text, size_t* size) {
    if (!size) return NVRTC_ERROR_INVALID_INPUT;
    *size = text.size();
    return NVRTC_SUCCESS;
}
int copy(const std::string& text, char* to) {
    if (!to) return NVRTC_ERROR_INVALID_INPUT;
    std::memcpy(to, text.data(), text.size());
    return NVRTC_SUCCESS;
}

}  // namespace

EXPORTED int nvrtcCreateProgram(void** program, const char* source, const char* name, int count,
                                const char* const* headers, const char* const* names) {
    const int result = call(original.nvrtcCreateProgram, program, source, name, count, headers, names);
    if (result != NVRTC_SUCCESS || library_is.empty()) return result;
    Program created;
    created.given.source = source, created.given.name = name ? name : "default_program";
    for (int n = 0; n < count; ++n) {
        created.given.headers.emplace_back(headers[n]);
        created.given.header_names.emplace_back(names ? names[n] : "");
    }
    const std::lock_guard lock(mutex);
    programs[*program] = std::move(created);
    return result;
}

EXPORTED int nvrtcDestroyProgram(void** program) {
    if (program) {
        const std::lock_guard lock(mutex);
        programs.erase(*program);
    }
    return call(original.nvrtcDestroyProgram, program);
}

EXPORTED int nvrtcAddNameExpression(void* program, const char* expression) {
    const int result = call(original.nvrtcAddNameExpression, program, expression);
    const std::lock_guard lock(mutex);
    const auto at = programs.find(program);
    if (result == NVRTC_SUCCESS && at != programs.end())
        at->second.given.expressions.emplace_back(expression);
    return result;
}

EXPORTED int nvrtcSetFlowCallback(void* program, void* callback, void* with) {
    {
        const std::lock_guard lock(mutex);
        if (const auto at = programs.find(program); at != programs.end()) at->second.watched = true;
    }
    return call(original.nvrtcSetFlowCallback, program, callback, with);
}

EXPORTED int nvrtcCompileProgram(void* program, int count, const char* const* options) {
    Given given;
    std::string folder;
    {
        const std::lock_guard lock(mutex);
        const auto at = programs.find(program);
        if (at != programs.end()) {
            at->second.made.reset();
            at->second.given.options.assign(options, options + (count > 0 ? count : 0));
            given = at->second.given;
            if (!at->second.watched && is_closed(given)) folder = folder_of_programs();
        }
    }
    if (folder.empty()) return call(original.nvrtcCompileProgram, program, count, options);
    if (std::optional<Made> before = find_program(folder, library_is, given)) {
        const std::lock_guard lock(mutex);
        programs[program].made = std::move(before);
        return NVRTC_SUCCESS;
    }
    const int result = call(original.nvrtcCompileProgram, program, count, options);
    if (result != NVRTC_SUCCESS) return result;
    if (const Made made = made_of(program, given); !made.ptx.empty())
        keep_program(folder, library_is, given, made);
    return result;
}

EXPORTED int nvrtcGetPTXSize(void* program, size_t* size) {
    if (const auto made = found(program)) return size_of(made->ptx, size);
    return call(original.nvrtcGetPTXSize, program, size);
}
EXPORTED int nvrtcGetPTX(void* program, char* ptx) {
    if (const auto made = found(program)) return copy(made->ptx, ptx);
    return call(original.nvrtcGetPTX, program, ptx);
}
EXPORTED int nvrtcGetProgramLogSize(void* program, size_t* size) {
    if (const auto made = found(program)) return size_of(made->log, size);
    return call(original.nvrtcGetProgramLogSize, program, size);
}
EXPORTED int nvrtcGetProgramLog(void* program, char* log) {
    if (const auto made = found(program)) return copy(made->log, log);
    return call(original.nvrtcGetProgramLog, program, log);
}
// The name stays where it is until the program is destroyed.
EXPORTED int nvrtcGetLoweredName(void* program, const char* expression, const char** name) {
    if (expression && name) {
        const std::lock_guard lock(mutex);
        const auto at = programs.find(program);
        if (at != programs.end() && at->second.made)
            if (const auto known = at->second.made->lowered.find(expression);
                known != at->second.made->lowered.end())
                return *name = known->second.c_str(), NVRTC_SUCCESS;
    }
    make_original(program);
    return call(original.nvrtcGetLoweredName, program, expression, name);
}

// Size 0 stays: the program was not compiled for a GPU (compute_NN), or to LTO-IR.
EXPORTED int nvrtcGetCUBINSize(void* program, size_t* size) {
    if (const auto made = found(program)) return size_of(made->for_a_gpu ? made->ptx : "", size);
    const int result = call(original.nvrtcGetCUBINSize, program, size);
    return result != NVRTC_SUCCESS || *size == 0 ? result : call(original.nvrtcGetPTXSize, program, size);
}
EXPORTED int nvrtcGetCUBIN(void* program, char* cubin) {
    size_t size = 0;
    const int result = nvrtcGetCUBINSize(program, &size);
    if (result != NVRTC_SUCCESS) return result;
    if (!cubin) return NVRTC_ERROR_INVALID_INPUT;
    return size ? nvrtcGetPTX(program, cubin) : NVRTC_SUCCESS;
}

#define ANSWER(name)                              \
    EXPORTED int name(void* program, void* out) { \
        make_original(program);                   \
        return call(original.name, program, out); \
    }
OF_COMPILED(ANSWER)
