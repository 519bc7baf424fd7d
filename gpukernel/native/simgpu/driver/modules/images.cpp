#include "simgpu/driver/modules/images.h"

#include <cstdint>
#include <cstring>

#include "common/linked_image.h"
#include "simgpu/driver/modules/zstandard.h"
#include "simgpu/host_memory.h"

namespace gpukernel::simgpu {

namespace {
constexpr uint32_t FATBIN = 0xBA55ED50, WRAPPER = 0x466243b1, ELF = 0x464c457f, LTO_IR = 0x7f4e43ed;
constexpr uint64_t LZ4 = 0x2000, ZSTANDARD = 0x8000;  // flags of a fat binary's entry
constexpr uint64_t MOST_UNPACKED = 1u << 30;
constexpr char NO_HOST_MEMORY[] = "the host has no memory for what the image unpacks to";
constexpr char NEEDS_PTX[] =
    "this image is machine code (a cubin); the simulated GPU executes PTX. Compile for PTX (compute_70, not "
    "sm_70). NVRTC and nvJitLink hand it over by themselves in a program that was started on its slice "
    "(gpukernel "
    "run, or a kernel that had its slice when it started: restart it)";
constexpr char IS_LTO_IR[] =
    "this image is LTO-IR, NVIDIA's intermediate form of a kernel, which the simulated GPU does not compile: "
    "link it "
    "with nvJitLink (cuda.core's Linker), or compile to PTX";
constexpr char IS_ARCHIVE[] =
    "this image is an archive of objects, and where no size comes with it nothing says where it ends: give "
    "it to "
    "a linker (cuLinkAddData, nvJitLink)";
constexpr char NEEDS_LIBRARY[] =
    "the fat binary's PTX is compressed with Zstandard, and the GPU server has no libzstd.so.1: install it "
    "there (Debian, Ubuntu: apt-get install libzstd1), or compile with --no-compress";

template <class T>
T read(const char* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

// LZ4 block format. False where the input breaks its rules.
bool lz4(std::string_view in, std::string& out, size_t size) {
    size_t at = 0;
    auto length = [&](size_t base) -> size_t {
        if (base != 15) return base;
        for (uint8_t more = 255; more == 255 && at < in.size();)
            base += more = static_cast<uint8_t>(in[at++]);
        return base;
    };
    while (at < in.size()) {
        uint8_t token = in[at++];
        size_t literals = length(token >> 4);
        if (literals > in.size() - at || literals > size - out.size()) return false;
        out.append(in.substr(at, literals));
        at += literals;
        if (at == in.size() || out.size() == size) break;
        if (in.size() - at < 2) return false;
        size_t offset = read<uint16_t>(in.data() + at);
        at += 2;
        size_t match = length(token & 15) + 4;
        if (offset == 0 || offset > out.size() || match > size - out.size()) return false;
        for (size_t from = out.size() - offset; match > 0; --match, ++from) out.push_back(out[from]);
    }
    return out.size() == size;
}

// The same text for an older architecture, where it is for any of its kind: not for one alone ("sm_90a").
std::string retargeted(std::string text, uint32_t target) {
    constexpr std::string_view DIRECTIVE = ".target sm_";
    const size_t at = text.find(DIRECTIVE);
    if (at == std::string::npos) return text;
    size_t end = at + DIRECTIVE.size();
    while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
    if (end < text.size() && (text[end] == 'a' || text[end] == 'f')) return text;
    return text.replace(at, end - at, std::string(DIRECTIVE) + std::to_string(target));
}

// The PTX of the newest architecture that is not newer than `target`; where there is none, the newest.  That
// says so when it is loaded, unless the binary has machine code for this device: then its program is written
// for it, too, and the text stands for what cannot be run here.
Image fatbin(const char* data, size_t bytes, uint32_t target) {
    Image image;
    if (bytes && bytes < 16) return {{}, CUDA_ERROR_INVALID_IMAGE, "a fat binary that is cut short"};
    const size_t header = read<uint16_t>(data + 6), total = read<uint64_t>(data + 8);
    if (size_t end; header < 16 || __builtin_add_overflow(header, total, &end) || (bytes && end > bytes))
        return {{}, CUDA_ERROR_INVALID_IMAGE, "a fat binary that is cut short"};
    bool machine_code = false, for_this_device = false;
    uint64_t best = 0;
    for (size_t at = header; at + 64 <= header + total;) {
        const char* entry = data + at;
        const uint16_t kind = read<uint16_t>(entry);
        const uint32_t entry_header = read<uint32_t>(entry + 4), compressed = read<uint32_t>(entry + 16);
        const uint64_t payload = read<uint64_t>(entry + 8), flags = read<uint64_t>(entry + 40),
                       full = read<uint64_t>(entry + 56);
        const uint32_t sm = read<uint32_t>(entry + 28);
        const uint64_t left = header + total - at;
        if (entry_header < 64 || entry_header > left || payload > left - entry_header || compressed > payload)
            break;
        at += entry_header + payload;
        machine_code |= kind == 2;
        for_this_device |= kind == 2 && sm <= target && sm / 10 == target / 10;
        const uint64_t rank = static_cast<uint64_t>(sm <= target) << 32 | sm;
        if (kind != 1 || rank < best) continue;
        const bool packed = flags & (LZ4 | ZSTANDARD);
        std::string_view body(entry + entry_header, compressed && packed ? compressed : payload);
        std::string text;
        HostShare share;
        if (packed) {  // charged before a few bytes become many
            if (full <= MOST_UNPACKED && !share.grow(full))
                return {{}, CUDA_ERROR_OUT_OF_MEMORY, NO_HOST_MEMORY};
            const Unpacked result = full > MOST_UNPACKED    ? Unpacked::damaged
                                    : flags & ZSTANDARD     ? unpack_zstandard(body, text, full)
                                    : lz4(body, text, full) ? Unpacked::done
                                                            : Unpacked::damaged;
            if (result != Unpacked::done) {
                image.message = result == Unpacked::damaged ? "the fat binary's compressed PTX is damaged"
                                                            : NEEDS_LIBRARY;
                continue;
            }
        } else {
            text = body;
        }
        while (text.ends_with('\0'))
            text.pop_back();  // nvcc fills up with them; a text in a linked image ends nowhere else
        best = rank;
        image.texts.clear();
        image.texts.push_back(std::move(text));
        image.share = std::move(share);
    }
    if (for_this_device && !image.texts.empty() && !(best >> 32))
        image.texts[0] = retargeted(std::move(image.texts[0]), target);
    if (image.texts.empty()) {
        image.error = CUDA_ERROR_NO_BINARY_FOR_GPU;
        if (image.message.empty()) image.message = machine_code ? NEEDS_PTX : "the fat binary holds no PTX";
    }
    return image;
}
}  // namespace

// libcudadevrt.a holds machine code.  Programs use one thing of it, the barrier of a cooperative launch.  The
// launch tells its address through two registers: its size, then a counter.  The first thread of every block
// adds to the counter, that of the first block so much more that the top bit flips when all have arrived.
constexpr const char* DEVICE_RUNTIME = R"(.version 6.4
.target sm_70
.address_size 64
.visible .func (.param .b64 result) cudaCGGetIntrinsicHandle(.param .b32 scope)
{
    .reg .b32 %low, %high;
    .reg .b64 %place;
    mov.u32 %high, %envreg1;
    mov.u32 %low, %envreg2;
    mov.b64 %place, {%low, %high};
    st.param.b64 [result], %place;
    ret;
}
.visible .func (.param .b32 result) cudaCGSynchronize(.param .b64 handle, .param .b32 flags)
{
    .reg .pred %no;
    .reg .b32 %t<8>;
    .reg .b64 %place;
    ld.param.b64 %place, [handle];
    barrier.sync 0;
    mov.u32 %t0, %tid.x;
    mov.u32 %t1, %tid.y;
    or.b32 %t0, %t0, %t1;
    mov.u32 %t1, %tid.z;
    or.b32 %t0, %t0, %t1;
    setp.ne.u32 %no, %t0, 0;
    @%no bra TOGETHER;
    mov.u32 %t0, %nctaid.x;
    mov.u32 %t1, %nctaid.y;
    mul.lo.u32 %t0, %t0, %t1;
    mov.u32 %t1, %nctaid.z;
    mul.lo.u32 %t0, %t0, %t1;
    sub.u32 %t0, 2147483649, %t0;
    mov.u32 %t1, %ctaid.x;
    mov.u32 %t2, %ctaid.y;
    or.b32 %t1, %t1, %t2;
    mov.u32 %t2, %ctaid.z;
    or.b32 %t1, %t1, %t2;
    setp.ne.u32 %no, %t1, 0;
    selp.b32 %t0, 1, %t0, %no;
    atom.add.acq_rel.gpu.u32 %t3, [%place+4], %t0;
WAIT:
    ld.acquire.gpu.u32 %t4, [%place+4];
    xor.b32 %t4, %t4, %t3;
    setp.ge.s32 %no, %t4, 0;
    @%no bra WAIT;
TOGETHER:
    barrier.sync 0;
    mov.b32 %t5, 0;
    st.param.b32 [result], %t5;
    ret;
}
)";

Image read_image(const void* data, size_t bytes, uint32_t target) {
    if (!data) return {{}, CUDA_ERROR_INVALID_VALUE, "no image"};
    const char* text = static_cast<const char*>(data);
    constexpr std::string_view ARCHIVE = "!<arch>\n";
    if (!bytes && std::strncmp(text, ARCHIVE.data(), ARCHIVE.size()) == 0)
        return {{}, CUDA_ERROR_INVALID_IMAGE, IS_ARCHIVE};
    if (std::string_view archive(text, bytes); archive.starts_with(ARCHIVE)) {
        if (archive.find("cuda_device_runtime") == std::string_view::npos)
            return {{}, CUDA_ERROR_NO_BINARY_FOR_GPU, NEEDS_PTX};
        return {{DEVICE_RUNTIME}, CUDA_SUCCESS, {}};
    }
    if (bytes && bytes < 4) return {{}, CUDA_ERROR_INVALID_IMAGE, "an image of fewer than four bytes"};
    // Text may be shorter than the magic numbers, none of which holds a NUL.
    const uint32_t magic = bytes || strnlen(text, 4) == 4 ? read<uint32_t>(text) : 0;
    if (magic == WRAPPER && (!bytes || bytes >= 16)) return fatbin(read<const char*>(text + 8), 0, target);
    if (magic == FATBIN) return fatbin(text, bytes, target);
    if (magic == ELF) return {{}, CUDA_ERROR_NO_BINARY_FOR_GPU, NEEDS_PTX};
    if (magic == LTO_IR) return {{}, CUDA_ERROR_NO_BINARY_FOR_GPU, IS_LTO_IR};
    const size_t length = bytes ? strnlen(text, bytes) : std::strlen(text);
    std::string_view all(text, length);
    if (!all.starts_with(LINKED_IMAGE)) return {{std::string(all)}, CUDA_SUCCESS, {}};
    Image image;
    std::string bytes_of_part;
    for (all.remove_prefix(LINKED_IMAGE.size()); !all.empty();) {
        if (!next_part(all, bytes_of_part))
            return {{}, CUDA_ERROR_INVALID_IMAGE, "a linked image that is cut short"};
        if (bytes_of_part.empty()) continue;
        // A wrapper is a pointer of the program's, and images do not nest.
        if (bytes_of_part.starts_with(LINKED_IMAGE) ||
            (bytes_of_part.size() >= 4 && read<uint32_t>(bytes_of_part.data()) == WRAPPER))
            return {{}, CUDA_ERROR_INVALID_IMAGE, "a part of a linked image that is none"};
        Image part = read_image(bytes_of_part.data(), bytes_of_part.size(), target);
        if (part.error != CUDA_SUCCESS) return part;
        for (std::string& found : part.texts) {
            if (!part.share.grow(found.size())) return {{}, CUDA_ERROR_OUT_OF_MEMORY, NO_HOST_MEMORY};
            image.texts.push_back(std::move(found));
        }
        image.share.join(std::move(part.share));
    }
    return image;
}

std::string link_image(const std::vector<std::string>& texts) {
    std::string image(LINKED_IMAGE);
    for (const std::string& text : texts) append_text(image, text);
    return image;
}

}  // namespace gpukernel::simgpu
