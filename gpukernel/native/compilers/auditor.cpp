// An auditor of the dynamic linker (rtld-audit(7)): where a program loads one of NVIDIA's libraries that it
// has a replacement for, from whatever place, it gets this package's library of the same name.  It is
// built twice: for every program on a remote slice with the CUDA runtime and math libraries, and for those on
// simulated devices with NVRTC and nvJitLink, which load NVIDIA's in turn.  It guarantees that nothing else
// is changed: every other name, and a library that is not there, is searched for as without it.  It is loaded
// into every process of a slice: no library of C, no constructor of C++, no memory of its own.
#include <link.h>
#include <sys/syscall.h>

namespace {

constexpr unsigned PATH = 4096;
constexpr char ORIGINAL[] =
    "gpukernel-original:";  // before the name by which a library of ours asks for NVIDIA's

struct Library {
    const char* name;
    const char* folder;       // of those that replace it, as seen from this one's
    const char* versions[3];  // of these
    char original[3][PATH];   // where NVIDIA's is, once it was asked for
};
#ifdef AUDITS_RUNTIME
constexpr char OWN_NAME[] = "/libgpukernel-runtime.so";
Library libraries[] = {{"libcudart.so", "", {".11.0", ".12", ".13"}, {}},
                       {"libcublas.so", "../libraries/", {".11", ".12", ".13"}, {}},
                       {"libcublasLt.so", "../libraries/", {".11", ".12", ".13"}, {}},
                       {"libcudnn.so", "../libraries/", {".9", nullptr, nullptr}, {}},
                       {"libcufft.so", "../libraries/", {".10", ".11", ".12"}, {}},
                       {"libcupti.so", "../libraries/", {".12", ".13", nullptr}, {}},
                       {"libcusolver.so", "../libraries/", {".11", ".12", nullptr}, {}},
                       {"libcusparse.so", "../libraries/", {".11", ".12", nullptr}, {}},
                       {"libcurand.so", "../libraries/", {".10", nullptr, nullptr}, {}},
                       {"libnccl.so", "../libraries/", {".2", nullptr, nullptr}, {}}};
#else
constexpr char OWN_NAME[] = "/libgpukernel-compilers.so";
Library libraries[] = {{"libnvrtc.so", "", {".12", ".13", nullptr}, {}},
                       {"libnvJitLink.so", "", {".12", ".13", nullptr}, {}}};
#endif
char own_folder[PATH], replacement[PATH];

long system_call(long number, long a, long b, long c, long d) {
    long result;
    register long fourth asm("r10") = d;
    asm volatile("syscall"
                 : "=a"(result)
                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                 : "rcx", "r11", "memory");
    return result;
}

unsigned length(const char* text) {
    unsigned n = 0;
    while (text[n]) ++n;
    return n;
}

// Returns what follows `prefix` in `text`, or null.
const char* after(const char* text, const char* prefix) {
    for (; *prefix; ++prefix, ++text)
        if (*text != *prefix) return nullptr;
    return text;
}

const char* file_name(const char* path) {
    const char* name = path;
    for (; *path; ++path)
        if (*path == '/') name = path + 1;
    return name;
}

// Appends `text` to the string of `used` bytes in `room`; false where it does not fit.
bool append(char* room, unsigned& used, const char* text) {
    for (; *text; ++text) {
        if (used + 1 >= PATH) return false;
        room[used++] = *text;
    }
    room[used] = 0;
    return true;
}

// Returns the major version that `version` (".12", ".12.9.86") begins with, or -1.
int major_of(const char* version) {
    if (*version++ != '.') return -1;
    int major = 0;
    while (*version >= '0' && *version <= '9' && major < 1000) major = major * 10 + *version++ - '0';
    return *version && *version != '.' ? -1 : major;
}

// Returns the index of the library's version that stands for `version`, or -1.
int index_of(const char* version, const Library& library) {
    const int major = major_of(version);
    for (int i = 0; i < 3 && major > 0; ++i)
        if (library.versions[i] && major_of(library.versions[i]) == major) return i;
    return -1;
}

// Names without a version are links to one with it.
int index_of_file(const char* path, const Library& library) {
    const char* version = after(file_name(path), library.name);
    if (!version) return -1;
    if (*version) return index_of(version, library);
    char target[PATH];
    const long bytes = system_call(SYS_readlinkat, -100 /* AT_FDCWD */, reinterpret_cast<long>(path),
                                   reinterpret_cast<long>(target), PATH - 1);
    if (bytes <= 0) return -1;
    target[bytes] = 0;
    version = after(file_name(target), library.name);
    return version ? index_of(version, library) : -1;
}

bool exists(const char* path) {
    return system_call(SYS_faccessat, -100 /* AT_FDCWD */, reinterpret_cast<long>(path), 4 /* R_OK */, 0) ==
           0;
}

#ifndef AUDITS_RUNTIME
// Returns whether the library lies beside an auditor: it is gpukernel's, of this installation or another, and
// hands its work to NVIDIA's, which it is not.
bool is_a_replacement(const char* path) {
    static char beside[PATH];
    unsigned used = 0;
    if (!append(beside, used, path)) return false;
    used = static_cast<unsigned>(file_name(beside) - beside) - 1;
    return append(beside, used, OWN_NAME) && exists(beside);
}
#endif

// LD_AUDIT names this library, perhaps among others.
[[gnu::constructor]] void find_own_folder(int, char**, char** environment) {
    const char* list = nullptr;
    for (; environment && *environment && !list; ++environment) list = after(*environment, "LD_AUDIT=");
    while (list && *list) {
        unsigned end = 0;
        while (list[end] && list[end] != ':') ++end;
        constexpr unsigned NAME = sizeof OWN_NAME - 1;
        if (end > NAME && end < PATH) {
            const char* rest = after(list + end - NAME, OWN_NAME);
            if (rest == list + end) {
                for (unsigned i = 0; i < end - NAME; ++i) own_folder[i] = list[i];
                own_folder[end - NAME] = 0;
                return;
            }
        }
        list += end + (list[end] == ':');
    }
}

}  // namespace

extern "C" [[gnu::visibility("default")]] unsigned la_version(unsigned version) {
    return own_folder[0] ? version < LAV_CURRENT ? version : LAV_CURRENT : 0;  // 0: not wanted
}

extern "C" [[gnu::visibility("default")]] char* la_objsearch(const char* name, uintptr_t*,
                                                             [[maybe_unused]] unsigned place) {
    char* unchanged = const_cast<char*>(name);
    if (const char* asked = after(name, ORIGINAL)) {
        for (Library& library : libraries)
            if (const char* version = after(asked, library.name))
                if (const int i = index_of(version, library); i >= 0 && library.original[i][0])
                    return library.original[i];
        return unchanged;
    }
    const char* file = file_name(name);
    if (file == name) return unchanged;  // the places where it is looked for come next
    for (Library& library : libraries) {
        const int i = index_of_file(name, library);
        if (i < 0 || !exists(name)) continue;
#ifndef AUDITS_RUNTIME
        static char no_file[] = "";  // with a null pointer the search would end
        if (is_a_replacement(name)) return place == LA_SER_ORIG ? unchanged : no_file;
#endif
        unsigned used = 0, kept = 0;
        if (!append(replacement, used, own_folder) || !append(replacement, used, "/") ||
            !append(replacement, used, library.folder) || !append(replacement, used, library.name) ||
            !append(replacement, used, library.versions[i]))
            return unchanged;
        const char* rest = after(name, replacement);
        if ((rest && !*rest) || length(name) >= PATH || !exists(replacement)) return unchanged;
        append(library.original[i], kept, name);
        return replacement;
    }
    return unchanged;
}
