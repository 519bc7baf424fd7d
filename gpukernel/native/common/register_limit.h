// The limit that a program puts on a thread's registers where it compiles (CU_JIT_MAX_REGISTERS,
// -maxrregcount), as PTX says it.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace gpukernel {

// A text of PTX whose kernels have `.maxnreg`.  Those that bound themselves (`.maxnreg`, `.maxntid`,
// `.reqntid`, `.minnctapersm`) keep what they have, as CUDA's programming guide says of launch bounds.
inline std::string limit_registers(std::string_view text, unsigned registers) {
    std::string limited;
    const auto word_ends = [&](size_t at) {
        return at >= text.size() ||
               !(std::string_view("_$%.").find(text[at]) != std::string_view::npos ||
                 (text[at] >= '0' && text[at] <= '9') || ((text[at] | 32) >= 'a' && (text[at] | 32) <= 'z'));
    };
    const auto is = [&](size_t at, std::string_view word) {
        return text.substr(at, word.size()) == word && word_ends(at + word.size());
    };
    bool kernel = false, bounded = false;  // between `.entry` and its body
    size_t copied = 0;
    for (size_t at = 0; at < text.size(); ++at) {
        if (text.substr(at, 2) == "//") {
            at = std::min(text.find('\n', at), text.size() - 1);
        } else if (text.substr(at, 2) == "/*") {
            const size_t end = text.find("*/", at + 2);
            at = end == std::string_view::npos ? text.size() : end + 1;
        } else if (text[at] == '"') {
            at = std::min(text.find('"', at + 1), text.size() - 1);
        } else if (text[at] == '.' && is(at, ".entry")) {
            kernel = true, bounded = false;
        } else if (kernel && (is(at, ".maxnreg") || is(at, ".maxntid") || is(at, ".reqntid") ||
                              is(at, ".minnctapersm"))) {
            bounded = true;
        } else if (kernel && text[at] == '{') {
            limited.append(text.substr(copied, at - copied));
            if (!bounded) limited += ".maxnreg " + std::to_string(registers) + " ";
            copied = at, kernel = false;
        } else if (kernel && text[at] == ';') {  // a declaration
            kernel = false;
        }
    }
    return limited.append(text.substr(copied));
}

}  // namespace gpukernel
