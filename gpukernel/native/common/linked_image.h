// A linked image: what a linker of this project hands out where NVIDIA's has a cubin, and the simulated GPU
// loads. It is text, so that its end is found as that of PTX.  Each part is a line with its number of bytes
// and the part itself: PTX, or the names of a library's contents; after " hex" the number is that of a binary
// part's digits.
#pragma once

#include <string>
#include <string_view>

namespace gpukernel {

constexpr std::string_view LINKED_IMAGE = "GPUKERNEL LINKED PTX\n", LINKED_BINARY = " hex";

inline void append_text(std::string& image, std::string_view text) {
    image += std::to_string(text.size()) + "\n";
    image += text;
}

inline void append_binary(std::string& image, std::string_view bytes) {
    constexpr char DIGITS[] = "0123456789abcdef";
    image += std::to_string(2 * bytes.size()) + std::string(LINKED_BINARY) + "\n";
    for (const char byte : bytes) {
        image += DIGITS[static_cast<unsigned char>(byte) >> 4];
        image += DIGITS[byte & 15];
    }
}

// Takes the first part off `parts`, the bytes after the heading; false where they are cut short or damaged.
inline bool next_part(std::string_view& parts, std::string& part) {
    size_t count = 0, at = 0;
    for (; at < parts.size() && parts[at] >= '0' && parts[at] <= '9'; ++at)
        if (__builtin_mul_overflow(count, 10, &count) ||
            __builtin_add_overflow(count, parts[at] - '0', &count))
            return false;
    std::string_view rest = parts.substr(at);
    const bool binary = rest.starts_with(LINKED_BINARY);
    if (binary) rest.remove_prefix(LINKED_BINARY.size());
    if (at == 0 || !rest.starts_with('\n') || count > rest.size() - 1) return false;
    const std::string_view body = rest.substr(1, count);
    parts = rest.substr(1 + count);
    if (!binary) return part = body, true;
    if (count % 2) return false;
    part.clear();
    auto value = [](char digit) { return digit <= '9' ? digit - '0' : digit - 'a' + 10; };
    for (size_t i = 0; i < count; i += 2) {
        const int high = value(body[i]), low = value(body[i + 1]);
        if (high < 0 || high > 15 || low < 0 || low > 15) return false;
        part += static_cast<char>(high << 4 | low);
    }
    return true;
}

}  // namespace gpukernel
