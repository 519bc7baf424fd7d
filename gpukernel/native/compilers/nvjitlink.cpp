// nvJitLink as programs on simulated devices see it.  NVIDIA's own links beside it, for its checks, its
// errors and its logs; in place of the cubin the program gets an image of the PTX that went in ("nvJitLink",
// chapter "User Interface"). LTO-IR becomes PTX by NVIDIA's option -ptx.  Machine code among the inputs is an
// error that says so.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/linked_image.h"
#include "common/register_limit.h"
#include "compilers/forward.h"

#define FORWARDED(X)    \
    X(nvJitLinkVersion) \
    X(__nvJitLinkAPI)
FORWARDED(GPUKERNEL_SLOT)

namespace {
using namespace gpukernel;
using namespace gpukernel::compilers;

enum Result { SUCCESS = 0, INVALID_INPUT = 3, INTERNAL = 6 };
enum Input { CUBIN = 1, PTX, LTOIR, FATBIN, OBJECT, LIBRARY, INDEX, ANY = 10 };

constexpr char MACHINE_CODE[] =
    " is machine code, and simulated devices execute PTX: hand nvJitLink the PTX or the LTO-IR that it was "
    "made from "
    "(nvcc -ptx, nvcc -gencode arch=compute_NN,code=compute_NN, nvcc -dlto)";
// By what the simulated GPU tells that a library is the device runtime's, whose functions it has itself.
constexpr std::string_view DEVICE_RUNTIME = "!<arch>\ncuda_device_runtime";

// NVIDIA's functions.
int no_function() { return INTERNAL; }
struct Original {
    int (*create)(void**, uint32_t, const char**);
    int (*destroy)(void**);
    int (*add_data)(void*, int, const void*, size_t, const char*);
    int (*complete)(void*);
    int (*cubin_size)(void*, size_t*);
    int (*cubin)(void*, void*);
    int (*ptx_size)(void*, size_t*);
    int (*ptx)(void*, char*);
    int (*ltoir_size)(void*, size_t*);
    int (*ltoir)(void*, void*);
    int (*error_log_size)(void*, size_t*);
    int (*error_log)(void*, char*);
    int (*info_log_size)(void*, size_t*);
    int (*info_log)(void*, char*);
} original;

struct LtoInput {
    std::string data, name;
};

struct Link {
    void* handle = nullptr;  // NVIDIA's linker
    std::vector<std::string> options;
    bool wants_ptx = false;  // -ptx: what comes out is PTX already
    std::string parts;       // of the image, as linked_image.h has them
    std::string only;        // the text, as long as it is the only part
    unsigned count = 0;
    std::vector<LtoInput> lto;
    std::string image, error;

    // -maxrregcount=N; 0: no limit.
    unsigned max_registers() const {
        constexpr std::string_view OPTION = "-maxrregcount=";
        for (const std::string& option : options)
            if (option.starts_with(OPTION))
                return static_cast<unsigned>(std::strtoul(option.c_str() + OPTION.size(), nullptr, 10));
        return 0;
    }

    void add(std::string_view given) {
        const unsigned most = max_registers();
        const std::string text = most ? limit_registers(given, most) : std::string(given);
        only = ++count == 1 ? text : std::string();
        append_text(parts, text);
    }
};

Link* of(void* handle) { return static_cast<Link*>(handle); }

// Text ends at a zero, if it has one.
std::string_view text_of(const void* data, size_t size) {
    const auto* text = static_cast<const char*>(data);
    return {text, strnlen(text, size)};
}

bool begins_with(std::string_view data, uint32_t magic) {
    return data.size() >= sizeof magic && std::memcmp(data.data(), &magic, sizeof magic) == 0;
}

// A host's object or library: the fat binaries in it are what nvcc left for linkers.
unsigned add_fat_binaries(Link& link, std::string_view bytes) {
    constexpr uint32_t MAGIC = 0xBA55ED50;
    unsigned found = 0;
    for (size_t at = 0; at + 16 <= bytes.size(); ++at) {
        if (!begins_with(bytes.substr(at, 4), MAGIC)) continue;
        uint16_t header;
        uint64_t size, whole;
        std::memcpy(&header, bytes.data() + at + 6, sizeof header);
        std::memcpy(&size, bytes.data() + at + 8, sizeof size);
        if (__builtin_add_overflow(size, header, &whole) || whole > bytes.size() - at) continue;
        append_binary(link.parts, bytes.substr(at, whole));
        ++link.count, ++found;
        at += whole - 1;
    }
    return found;
}

int machine_code(Link& link, const char* name) {
    link.error = std::string("gpukernel: ") + (name ? name : "an input") + MACHINE_CODE;
    return INVALID_INPUT;
}

int add(Link& link, int type, const void* data, size_t size, const char* name) {
    if (!data || link.wants_ptx) return original.add_data(link.handle, type, data, size, name);
    const std::string_view bytes(static_cast<const char*>(data), size);
    auto with_check = [&](int as, const void* from, size_t count) {
        return original.add_data(link.handle, as, from, count, name);
    };
    if (bytes.starts_with(LINKED_IMAGE)) {  // what this library, or the simulated driver's linker, handed out
        std::string part;
        for (std::string_view rest = text_of(data, size).substr(LINKED_IMAGE.size()); !rest.empty();) {
            if (!next_part(rest, part)) return INVALID_INPUT;
            if (part == DEVICE_RUNTIME || begins_with(part, 0xBA55ED50)) {
                append_binary(link.parts, part);
                ++link.count;
            } else if (const int result = with_check(PTX, part.c_str(), part.size() + 1)) {
                return result;
            } else {
                link.add(part);
            }
        }
        return SUCCESS;
    }
    if (begins_with(bytes, 0x464c457f))
        if (type == CUBIN || !add_fat_binaries(link, bytes)) return machine_code(link, name);
    if (bytes.starts_with("!<arch>\n")) {
        if (bytes.find("cuda_device_runtime") != std::string_view::npos)
            link.add(DEVICE_RUNTIME);
        else if (!add_fat_binaries(link, bytes))
            return machine_code(link, name);
    }
    if (begins_with(bytes, 0xBA55ED50)) {
        append_binary(link.parts, bytes);
        ++link.count;
    }
    const bool text = type != LTOIR && text_of(data, size).find(".version") != std::string_view::npos;
    const int result = with_check(text && type == CUBIN ? PTX : type, data, size);
    if (result != SUCCESS) return result;
    if (text) link.add(text_of(data, size));
    constexpr uint32_t LTO_MAGIC = 0x7f4e43ed;
    if (type == LTOIR || begins_with(bytes, LTO_MAGIC))
        link.lto.push_back({std::string(bytes), name ? name : "input"});
    return SUCCESS;
}

// Has NVIDIA's linker make one text of PTX of all LTO-IR.
int lto_to_ptx(Link& link, std::string& text) {
    std::vector<const char*> options;
    for (const std::string& option : link.options)
        if (!option.starts_with("-Xptxas") && !option.starts_with("-maxrregcount") && option != "-verbose")
            options.push_back(option.c_str());
    options.push_back("-ptx");
    void* handle = nullptr;
    int result = original.create(&handle, static_cast<uint32_t>(options.size()), options.data());
    if (result != SUCCESS) return result;
    for (const LtoInput& input : link.lto)
        if (result == SUCCESS)
            result =
                original.add_data(handle, LTOIR, input.data.data(), input.data.size(), input.name.c_str());
    size_t size = 0;
    if (result == SUCCESS) result = original.complete(handle);
    if (result == SUCCESS) result = original.ptx_size(handle, &size);
    if (result == SUCCESS) {
        std::string room(size + 1, '\0');
        result = original.ptx(handle, room.data());
        text = room.c_str();
    }
    if (result != SUCCESS) {
        if (original.error_log_size(handle, &size) == SUCCESS && size) {
            std::string room(size + 1, '\0');
            original.error_log(handle, room.data());
            link.error = room.c_str();
        }
        link.error += "gpukernel: the LTO-IR could not be made PTX, which simulated devices need";
    }
    original.destroy(&handle);
    return result;
}

int complete(Link& link) {
    int result = original.complete(link.handle);
    if (result != SUCCESS || link.wants_ptx) return result;
    if (!link.lto.empty()) {
        std::string text;
        if (result = lto_to_ptx(link, text); result != SUCCESS) return result;
        link.add(text);
    }
    link.image = !link.only.empty() ? link.only : std::string(LINKED_IMAGE) + link.parts;
    return SUCCESS;
}

[[gnu::constructor]] void connect() {
    void* library = open_original("libnvJitLink.so." GPUKERNEL_TEXT(MAJOR));
    auto find = [&](auto*& function, const char* name) {
        void* instead = reinterpret_cast<void*>(no_function);
        function = of_original(library, name,
                               reinterpret_cast<std::remove_reference_t<decltype(function)>>(instead));
    };
    find(original.create, "nvJitLinkCreate");
    find(original.destroy, "nvJitLinkDestroy");
    find(original.add_data, "nvJitLinkAddData");
    find(original.complete, "nvJitLinkComplete");
    find(original.cubin_size, "nvJitLinkGetLinkedCubinSize");
    find(original.cubin, "nvJitLinkGetLinkedCubin");
    find(original.ptx_size, "nvJitLinkGetLinkedPtxSize");
    find(original.ptx, "nvJitLinkGetLinkedPtx");
    find(original.ltoir_size, "nvJitLinkGetLinkedLTOIRSize");
    find(original.ltoir, "nvJitLinkGetLinkedLTOIR");
    find(original.error_log_size, "nvJitLinkGetErrorLogSize");
    find(original.error_log, "nvJitLinkGetErrorLog");
    find(original.info_log_size, "nvJitLinkGetInfoLogSize");
    find(original.info_log, "nvJitLinkGetInfoLog");
#define CONNECT(name) \
    gpukernel_slot_##name = reinterpret_cast<void*>(of_original<int()>(library, #name, no_function));
    FORWARDED(CONNECT)
}
}  // namespace

// Every function is there under its own name and under one for each minor version, which NVIDIA's header asks
// for.
#define MINOR(name, minor)                                                       \
    asm(".globl __" #name "_" GPUKERNEL_TEXT(MAJOR) "_" #minor "\n.set __" #name \
                                                    "_" GPUKERNEL_TEXT(MAJOR) "_" #minor ", " #name "\n");
// clang-format off
#define EVERY_MINOR(name) \
    MINOR(name, 0) MINOR(name, 1) MINOR(name, 2) MINOR(name, 3) MINOR(name, 4) \
    MINOR(name, 5) MINOR(name, 6) MINOR(name, 7) MINOR(name, 8) MINOR(name, 9)
// clang-format on
#define API extern "C" [[gnu::visibility("default")]] int

API nvJitLinkCreate(void** handle, uint32_t count, const char** options) {
    if (!handle) return original.create(nullptr, count, options);
    auto link = std::make_unique<Link>();
    const int result = original.create(&link->handle, count, options);
    if (result != SUCCESS) return result;
    for (uint32_t i = 0; i < count; ++i) {
        link->options.emplace_back(options[i]);
        link->wants_ptx |= link->options.back() == "-ptx";
    }
    *handle = link.release();
    return SUCCESS;
}
EVERY_MINOR(nvJitLinkCreate)

API nvJitLinkDestroy(void** handle) {
    if (!handle || !*handle) return INVALID_INPUT;
    const std::unique_ptr<Link> link(of(*handle));
    *handle = nullptr;
    return original.destroy(&link->handle);
}
EVERY_MINOR(nvJitLinkDestroy)

API nvJitLinkAddData(void* handle, int type, const void* data, size_t size, const char* name) {
    return handle ? add(*of(handle), type, data, size, name) : INVALID_INPUT;
}
EVERY_MINOR(nvJitLinkAddData)

API nvJitLinkAddFile(void* handle, int type, const char* path) {
    if (!handle || !path) return INVALID_INPUT;
    std::ifstream file(path, std::ios::binary);
    const std::string data{std::istreambuf_iterator<char>(file), {}};
    if (!file) {
        of(handle)->error = std::string("gpukernel: '") + path + "' cannot be read";
        return INVALID_INPUT;
    }
    // One byte more, a zero: text may be taken to have one.
    return add(*of(handle), type, data.c_str(), data.size() + (type == PTX), path);
}
EVERY_MINOR(nvJitLinkAddFile)

API nvJitLinkComplete(void* handle) { return handle ? complete(*of(handle)) : INVALID_INPUT; }
EVERY_MINOR(nvJitLinkComplete)

API nvJitLinkGetLinkedCubinSize(void* handle, size_t* size) {
    if (!handle) return INVALID_INPUT;
    const int result = original.cubin_size(of(handle)->handle, size);
    if (result == SUCCESS && !of(handle)->image.empty()) *size = of(handle)->image.size() + 1;
    return result;
}
EVERY_MINOR(nvJitLinkGetLinkedCubinSize)

API nvJitLinkGetLinkedCubin(void* handle, void* cubin) {
    if (!handle) return INVALID_INPUT;
    const std::string& image = of(handle)->image;
    if (image.empty() || !cubin) return original.cubin(of(handle)->handle, cubin);
    std::memcpy(cubin, image.c_str(), image.size() + 1);
    return SUCCESS;
}
EVERY_MINOR(nvJitLinkGetLinkedCubin)

API nvJitLinkGetLinkedPtxSize(void* handle, size_t* size) {
    return handle ? original.ptx_size(of(handle)->handle, size) : INVALID_INPUT;
}
EVERY_MINOR(nvJitLinkGetLinkedPtxSize)

API nvJitLinkGetLinkedPtx(void* handle, char* ptx) {
    return handle ? original.ptx(of(handle)->handle, ptx) : INVALID_INPUT;
}
EVERY_MINOR(nvJitLinkGetLinkedPtx)

#if MAJOR >= 13
API nvJitLinkGetLinkedLTOIRSize(void* handle, size_t* size) {
    return handle ? original.ltoir_size(of(handle)->handle, size) : INVALID_INPUT;
}
EVERY_MINOR(nvJitLinkGetLinkedLTOIRSize)

API nvJitLinkGetLinkedLTOIR(void* handle, void* ltoir) {
    return handle ? original.ltoir(of(handle)->handle, ltoir) : INVALID_INPUT;
}
EVERY_MINOR(nvJitLinkGetLinkedLTOIR)
#endif

API nvJitLinkGetErrorLogSize(void* handle, size_t* size) {
    if (!handle || !size) return INVALID_INPUT;
    if (of(handle)->error.empty()) return original.error_log_size(of(handle)->handle, size);
    *size = of(handle)->error.size() + 1;
    return SUCCESS;
}
EVERY_MINOR(nvJitLinkGetErrorLogSize)

API nvJitLinkGetErrorLog(void* handle, char* log) {
    if (!handle || !log) return INVALID_INPUT;
    if (of(handle)->error.empty()) return original.error_log(of(handle)->handle, log);
    std::memcpy(log, of(handle)->error.c_str(), of(handle)->error.size() + 1);
    return SUCCESS;
}
EVERY_MINOR(nvJitLinkGetErrorLog)

API nvJitLinkGetInfoLogSize(void* handle, size_t* size) {
    return handle ? original.info_log_size(of(handle)->handle, size) : INVALID_INPUT;
}
EVERY_MINOR(nvJitLinkGetInfoLogSize)

API nvJitLinkGetInfoLog(void* handle, char* log) {
    return handle ? original.info_log(of(handle)->handle, log) : INVALID_INPUT;
}
EVERY_MINOR(nvJitLinkGetInfoLog)
