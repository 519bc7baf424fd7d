// The kernels of a large text without their bodies: frameworks have thousands in one image and launch a few,
// so that each is read when it is first used.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "simgpu/ptx/syntax.h"

namespace gpukernel::simgpu::ptx {

constexpr size_t kLargeText = 64 << 10;  // smaller ones are read as a whole

struct KernelText {
    std::string_view text;  // from .entry to the brace that closes the body
    uint32_t line;          // of .entry
};
struct Outline {
    std::string skeleton;  // the text with these kernels' bodies empty; every line keeps its number
    std::vector<KernelText> kernels;
};
// Of a text that is not understood nothing is left out: whoever reads the skeleton finds what is wrong.  A
// kernel with variables that live as long as the module stays whole, and so does a very large one.
Outline outline(std::string_view text);

// Calls `found` with every name in `text`.
template <class Found>
void names_in(std::string_view text, Found found) {
    auto word = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
               c == '$';
    };
    for (size_t at = 0; at < text.size();) {
        if (!word(text[at])) {
            ++at;
            continue;
        }
        const size_t begin = at;
        while (at < text.size() && word(text[at])) ++at;
        if (!begin || (text[begin - 1] != '%' && text[begin - 1] != '.'))
            found(text.substr(begin, at - begin));
    }
}

// The tree of one kernel of `unit`, read from its text.  Throws SyntaxError.
FunctionTree parse_kernel(const Unit& unit, const KernelText& kernel);

}  // namespace gpukernel::simgpu::ptx
