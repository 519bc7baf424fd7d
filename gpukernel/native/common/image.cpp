#include "common/image.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace gpukernel::wire {

namespace {
constexpr uint32_t FATBIN = 0xBA55ED50, WRAPPER = 0x466243b1, ELF = 0x464c457f;
constexpr size_t FATBIN_HEADER = 16, ENTRY_HEADER = 64;
constexpr size_t ELF_HEADER = 64, PROGRAM_HEADER = 56, SECTION_HEADER = 64;
constexpr uint32_t NO_BYTES = 8;  // SHT_NOBITS: a section that takes no room in the file

template <class T>
T read(const char* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

// Tables of headers in a 64-bit ELF file (System V ABI, "ELF Header").
struct ElfTables {
    explicit ElfTables(const char* at)
        : program(read<uint64_t>(at + 32)),
          section(read<uint64_t>(at + 40)),
          program_size(read<uint16_t>(at + 54)),
          program_count(read<uint16_t>(at + 56)),
          section_size(read<uint16_t>(at + 58)),
          section_count(read<uint16_t>(at + 60)) {}
    uint64_t program, section;
    uint32_t program_size, program_count, section_size, section_count;
};

bool within(uint64_t offset, uint64_t bytes, uint64_t size) {
    return offset <= size && bytes <= size - offset;
}

bool elf_whole(std::string_view image) {
    constexpr char CLASS_64 = 2;
    if (image.size() < ELF_HEADER || image[4] != CLASS_64) return false;
    const ElfTables tables(image.data());
    if ((tables.program_count && tables.program_size < PROGRAM_HEADER) ||
        (tables.section_count && tables.section_size < SECTION_HEADER) ||
        !within(tables.program, uint64_t{tables.program_size} * tables.program_count, image.size()) ||
        !within(tables.section, uint64_t{tables.section_size} * tables.section_count, image.size()))
        return false;
    for (uint32_t i = 0; i < tables.program_count; ++i) {
        const char* at = image.data() + tables.program + uint64_t{i} * tables.program_size;
        if (!within(read<uint64_t>(at + 8), read<uint64_t>(at + 32), image.size())) return false;
    }
    for (uint32_t i = 0; i < tables.section_count; ++i) {
        const char* at = image.data() + tables.section + uint64_t{i} * tables.section_size;
        const auto type = read<uint32_t>(at + 4);
        if (type && type != NO_BYTES &&
            !within(read<uint64_t>(at + 24), read<uint64_t>(at + 32), image.size()))
            return false;
    }
    return true;
}

bool fatbin_whole(std::string_view image) {
    if (image.size() < FATBIN_HEADER) return false;
    const size_t header = read<uint16_t>(image.data() + 6);
    const auto size = read<uint64_t>(image.data() + 8);
    if (header < FATBIN_HEADER || !within(header, size, image.size())) return false;
    for (std::string_view rest = image.substr(header, size); rest.size() >= ENTRY_HEADER;) {
        const size_t entry = read<uint32_t>(rest.data() + 4);
        const auto payload = read<uint64_t>(rest.data() + 8);
        if (entry < ENTRY_HEADER || !within(entry, payload, rest.size())) return false;
        const std::string_view inside = rest.substr(entry, payload);
        if (inside.size() >= 4 && read<uint32_t>(inside.data()) == ELF && !elf_whole(inside)) return false;
        rest.remove_prefix(entry + payload);
    }
    return true;
}
}  // namespace

bool extent_of(const void* image, std::string_view& data) {
    const char* at = static_cast<const char*>(image);
    // Text may be shorter than the magic numbers, none of which holds a NUL.
    const size_t length = ::strnlen(at, sizeof(uint32_t));
    uint32_t magic = length == sizeof magic ? read<uint32_t>(at) : 0;
    if (magic == WRAPPER) {
        at = read<const char*>(at + 8);
        if (!at) return false;
        magic = read<uint32_t>(at);
        if (magic != FATBIN && magic != ELF) return false;
    }
    uint64_t bytes = 0;
    if (magic == FATBIN) {
        if (__builtin_add_overflow(read<uint64_t>(at + 8), read<uint16_t>(at + 6), &bytes)) return false;
    } else if (magic == ELF) {  // its tables of headers end last
        const ElfTables tables(at);
        uint64_t program, section;
        if (__builtin_add_overflow(tables.program, uint64_t{tables.program_size} * tables.program_count,
                                   &program) ||
            __builtin_add_overflow(tables.section, uint64_t{tables.section_size} * tables.section_count,
                                   &section))
            return false;
        bytes = std::max({program, section, uint64_t{ELF_HEADER}});
    } else {
        bytes = std::strlen(at) + 1;
    }
    if (bytes > MAX_IMAGE) return false;
    data = {at, bytes};
    return true;
}

bool whole(std::string_view image) {
    if (image.size() < sizeof(uint32_t)) return false;
    switch (read<uint32_t>(image.data())) {
        case WRAPPER:
            return false;  // it holds a pointer of another process
        case FATBIN:
            return fatbin_whole(image);
        case ELF:
            return elf_whole(image);
        default:
            return true;
    }
}

}  // namespace gpukernel::wire
