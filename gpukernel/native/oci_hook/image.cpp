#include "oci_hook/image.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <string_view>
#include <utility>

namespace gpukernel::oci_hook {

namespace {
constexpr size_t MOST_BYTES = 16 << 20;
constexpr char LINKER[] = "lib64/ld-linux-x86-64.so.2", MUSL[] = "lib/ld-musl-x86_64.so.1";
constexpr const char* LIBRARIES[] = {"lib/x86_64-linux-gnu/libc.so.6", "lib64/libc.so.6", "usr/lib/libc.so.6",
                                     "lib/libc.so.6"};
using Version = std::pair<int, int>;

// No link of the image leads out of it.
int open_inside(int root, const char* path, int flags) {
    open_how how{};
    how.flags = static_cast<unsigned>(flags | O_CLOEXEC);
    how.resolve = RESOLVE_IN_ROOT;
    return static_cast<int>(::syscall(SYS_openat2, root, path, &how, sizeof how));
}

bool is_there(int root, const char* path) {
    const int file = open_inside(root, path, O_PATH);
    if (file >= 0) ::close(file);
    return file >= 0;
}

// A container's start waits for this: of megabytes, so they are read in one piece.
std::string content(int file) {
    std::string text;
    struct stat about{};
    if (file >= 0 && ::fstat(file, &about) == 0 && S_ISREG(about.st_mode))
        text.resize(std::min(static_cast<size_t>(about.st_size), MOST_BYTES));
    size_t length = 0;
    for (ssize_t got; length < text.size(); length += static_cast<size_t>(got))
        if ((got = ::read(file, text.data() + length, text.size() - length)) <= 0) break;
    if (file >= 0) ::close(file);
    text.resize(length);
    return text;
}

// As std::string_view::find, which looks for a first byte of 0 in a file that has mostly such.
size_t place_of(std::string_view text, std::string_view word, size_t from) {
    const void* found = ::memmem(text.data() + from, text.size() - from, word.data(), word.size());
    return found ? static_cast<size_t>(static_cast<const char*>(found) - text.data())
                 : std::string_view::npos;
}

// The newest version that stands behind `word` anywhere in `text`; 0.0 without one.
Version newest(std::string_view text, std::string_view word) {
    const auto number = [&text](size_t& at) {
        int value = 0;
        for (; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) && value < 1000; ++at)
            value = 10 * value + (text[at] - '0');
        return value;
    };
    Version found{0, 0};
    for (size_t at = place_of(text, word, 0); at != std::string_view::npos; at = place_of(text, word, at)) {
        at += word.size();
        const int major = number(at);
        if (at < text.size() && text[at] == '.') found = std::max(found, Version{major, number(++at)});
    }
    return found;
}

std::string written(Version version) {
    return std::to_string(version.first) + "." + std::to_string(version.second);
}

// The shim lies beside this program's folder.
Version needed() {
    char path[4096];
    const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
    const std::string_view self(path, static_cast<size_t>(std::max<ssize_t>(length, 0)));
    const std::string shim = std::string(self.substr(0, self.rfind('/'))) + "/../shim/libcuda.so.1";
    return newest(content(::open(shim.c_str(), O_RDONLY | O_CLOEXEC)), std::string_view("\0GLIBC_", 7));
}
}  // namespace

std::string image_trouble(int root) {
    const Version wanted = needed();
    const std::string want = " glibc " + written(wanted) + " or newer";
    if (!is_there(root, LINKER))
        return (is_there(root, MUSL)
                    ? "this image has musl in place of glibc (as Alpine has), and CUDA programs need"
                    : std::string("this image has no dynamic linker of glibc (/") + LINKER +
                          "), and a slice's libraries need") +
               want + ": take an image on Debian, Ubuntu, Fedora or the like";
    for (const char* path : LIBRARIES) {
        const int file = open_inside(root, path, O_RDONLY | O_NONBLOCK);
        if (file < 0) continue;
        const Version has = newest(content(file), "stable release version ");
        if (has != Version{0, 0} && has < wanted)
            return "this image has glibc " + written(has) + ", and a slice's libraries need" + want +
                   ": take a newer image, or a gpukernel that was built for older systems";
        break;
    }
    return "";
}

}  // namespace gpukernel::oci_hook
