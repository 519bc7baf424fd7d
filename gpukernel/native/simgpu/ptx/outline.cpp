// Where the kernels of a text begin and end, without reading them (PTX ISA 4.1, 5.1).
#include "simgpu/ptx/outline.h"

namespace gpukernel::simgpu::ptx {
namespace {

constexpr size_t kMostBody = 1 << 20;  // a larger one is read with the text, which is ended early in vain

bool word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$';
}

struct Scanner {
    std::string_view text;
    size_t at = 0;
    uint32_t line = 1;

    bool over() const { return at >= text.size() || text[at] == '\0'; }
    // Whether a blank, a comment or a string was passed.
    bool skip() {
        const char c = text[at], next = at + 1 < text.size() ? text[at + 1] : '\0';
        if (c == '\n') {
            ++line, ++at;
        } else if (c == '/' && next == '/') {
            while (!over() && text[at] != '\n') ++at;
        } else if (c == '/' && next == '*') {
            for (at += 2; !over() && !(text[at] == '*' && at + 1 < text.size() && text[at + 1] == '/'); ++at)
                line += text[at] == '\n';
            at += 2;
        } else if (c == '"') {
            for (++at; !over() && text[at] != '"'; ++at) {
                at += text[at] == '\\';
                line += at < text.size() && text[at] == '\n';
            }
            ++at;
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f') {
            ++at;
        } else {
            return false;
        }
        return true;
    }
    // Whether this directive stands here, and nothing of another word's (ld.global).
    bool is(std::string_view directive) const {
        return text.substr(at, directive.size()) == directive &&
               (at + directive.size() == text.size() || !word(text[at + directive.size()])) &&
               (at == 0 || (!word(text[at - 1]) && text[at - 1] != '.'));
    }
    // Passes { … }; false where it does not end.  `lasting`: it has variables of the module's life.
    bool braces(bool& lasting) {
        int depth = 0;
        while (!over()) {
            if (skip()) continue;
            const char c = text[at];
            lasting |= c == '.' && (is(".global") || is(".const"));
            depth += (c == '{') - (c == '}');
            ++at;
            if (!depth) return true;
        }
        return false;
    }
};

}  // namespace

Outline outline(std::string_view text) {
    const Outline whole{std::string(text), {}};
    Outline result;
    Scanner here{text};
    size_t copied = 0;
    bool lasting = false;
    while (!here.over()) {
        if (here.skip()) continue;
        if (text[here.at] == '{') {
            if (!here.braces(lasting)) return whole;
            continue;
        }
        if (!here.is(".entry")) {
            ++here.at;
            continue;
        }
        const size_t begin = here.at;
        const uint32_t line = here.line;
        while (!here.over() && text[here.at] != '{' && text[here.at] != ';')
            if (!here.skip()) ++here.at;
        if (here.over()) return whole;
        if (text[here.at] == ';') continue;  // declared alone
        const size_t body = here.at + 1;
        const uint32_t first = here.line;
        lasting = false;
        if (!here.braces(lasting)) return whole;
        if (lasting || here.at - begin > kMostBody) continue;
        if (!result.kernels.empty() && result.kernels.back().line == line) return whole;
        result.kernels.push_back({text.substr(begin, here.at - begin), line});
        result.skeleton += text.substr(copied, body - copied);
        result.skeleton.append(here.line - first, '\n');
        copied = here.at - 1;
    }
    result.skeleton += text.substr(copied);
    return result;
}

}  // namespace gpukernel::simgpu::ptx
