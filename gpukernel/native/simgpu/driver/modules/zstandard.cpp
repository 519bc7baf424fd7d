#include "simgpu/driver/modules/zstandard.h"

#include <dlfcn.h>

namespace gpukernel::simgpu {

namespace {
// Functions of zstd.h that are stable since version 1.4.  The library is the machine's: distributions'
// package managers need it themselves.
struct Library {
    size_t (*decompress)(void* to, size_t room, const void* from, size_t bytes) = nullptr;
    size_t (*frame_bytes)(const void* from, size_t bytes) = nullptr;
    unsigned (*is_error)(size_t code) = nullptr;

    Library() {
        void* const found = ::dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!found) return;
        decompress = reinterpret_cast<decltype(decompress)>(::dlsym(found, "ZSTD_decompress"));
        frame_bytes = reinterpret_cast<decltype(frame_bytes)>(::dlsym(found, "ZSTD_findFrameCompressedSize"));
        is_error = reinterpret_cast<decltype(is_error)>(::dlsym(found, "ZSTD_isError"));
    }
    bool usable() const { return decompress && frame_bytes && is_error; }
};
}  // namespace

Unpacked unpack_zstandard(std::string_view in, std::string& out, size_t size) {
    static const Library library;
    if (!library.usable()) return Unpacked::no_library;
    const size_t bytes = library.frame_bytes(in.data(), in.size());
    if (library.is_error(bytes) || bytes > in.size()) return Unpacked::damaged;
    out.resize(size);
    return library.decompress(out.data(), size, in.data(), bytes) == size ? Unpacked::done
                                                                          : Unpacked::damaged;
}

}  // namespace gpukernel::simgpu
