// Text to tokens (PTX ISA 4.1 to 4.5).
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>

#include "simgpu/ptx/syntax.h"

namespace gpukernel::simgpu {
thread_local const std::atomic<bool>* in_vain = nullptr;
}

namespace gpukernel::simgpu::ptx {
namespace {

bool digit(char c) { return std::isdigit(static_cast<unsigned char>(c)); }
bool word_start(char c) {
    return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%';
}
bool word(char c) { return digit(c) || std::isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '$'; }

struct Lexer {
    std::string_view text;
    size_t at = 0;
    uint32_t line = 1;
    std::vector<Token> out{};

    char peek(size_t ahead = 0) const { return at + ahead < text.size() ? text[at + ahead] : '\0'; }

    bool skip_blank() {
        size_t start = at;
        for (;;) {
            char c = peek();
            if (c == '\n') {
                ++line, ++at;
            } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f') {
                ++at;
            } else if (c == '/' && peek(1) == '/') {
                while (at < text.size() && text[at] != '\n') ++at;
            } else if (c == '/' && peek(1) == '*') {
                at += 2;
                while (at < text.size() && !(text[at] == '*' && peek(1) == '/')) line += text[at++] == '\n';
                at = std::min(at + 2, text.size());
            } else {
                return at != start;
            }
        }
    }

    void push(Tok kind, size_t start, bool glued, uint64_t bits = 0) {
        out.push_back({kind, text.substr(start, at - start), bits, line, glued});
    }

    void number(bool glued) {
        size_t start = at;
        char second = static_cast<char>(std::tolower(peek(1)));
        if (peek() == '0' && (second == 'f' || second == 'd')) {
            size_t digits = second == 'f' ? 8 : 16;
            at = std::min(at + 2 + digits, text.size());
            uint64_t bits = std::strtoull(std::string(text.substr(start + 2, digits)).c_str(), nullptr, 16);
            return push(second == 'f' ? Tok::floating32 : Tok::floating64, start, glued, bits);
        }
        int radix = 10;
        if (peek() == '0' && second == 'x')
            radix = 16, at += 2;
        else if (peek() == '0' && second == 'b')
            radix = 2, at += 2;
        size_t digits = at;
        while (radix == 16 ? std::isxdigit(static_cast<unsigned char>(peek())) != 0 : digit(peek())) ++at;
        if (radix == 10 && ((peek() == '.' && digit(peek(1))) || peek() == 'e' || peek() == 'E')) {
            std::string copy(text.substr(start, 64));
            char* end = nullptr;
            double value = std::strtod(copy.c_str(), &end);
            at = start + static_cast<size_t>(end - copy.c_str());
            uint64_t bits;
            std::memcpy(&bits, &value, 8);
            return push(Tok::floating64, start, glued, bits);
        }
        if (radix == 10 && text[start] == '0') radix = 8;
        uint64_t bits = std::strtoull(std::string(text.substr(digits, at - digits)).c_str(), nullptr, radix);
        if (peek() == 'U' || peek() == 'u') ++at;
        push(Tok::integer, start, glued, bits);
    }

    void run() {
        for (;;) {
            bool glued = !skip_blank();
            if (at >= text.size() || peek() == '\0') break;
            stop_in_vain(line);
            size_t start = at;
            char c = peek();
            if (word_start(c)) {
                ++at;
                while (word(peek())) ++at;
                push(Tok::ident, start, glued);
            } else if (c == '.' && (word_start(peek(1)) || digit(peek(1)))) {
                ++at;
                while (word(peek()) || (peek() == ':' && peek(1) == ':')) at += word(peek()) ? 1 : 2;
                push(Tok::directive, start, glued);
            } else if (digit(c)) {
                number(glued);
            } else if (c == '"') {
                ++at;
                while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
                at = std::min(at + 1, text.size());
                push(Tok::string, start, glued);
            } else if (std::strchr("{}[]();,:|@!<>+-=*/~&^?", c)) {
                ++at;
                push(Tok::punct, start, glued);
            } else {
                throw SyntaxError{Status::invalid_ptx, line, std::string("unexpected character '") + c + "'"};
            }
        }
        out.push_back({Tok::end, {}, 0, line, false});
    }
};

}  // namespace

std::vector<Token> lex(std::string_view text) {
    Lexer lexer{text};
    lexer.out.reserve(text.size() / 4);
    lexer.run();
    return std::move(lexer.out);
}

}  // namespace gpukernel::simgpu::ptx
