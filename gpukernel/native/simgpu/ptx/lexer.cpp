// Text to tokens (PTX ISA 4.1 to 4.5).
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "simgpu/ptx/syntax.h"

namespace gpukernel::simgpu {
thread_local const std::atomic<bool>* in_vain = nullptr;
}

namespace gpukernel::simgpu::ptx {
namespace {

// ASCII, whatever the locale of the program.
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }
bool digit(char c) { return c >= '0' && c <= '9'; }
bool hexadecimal(char c) { return digit(c) || (lower(c) >= 'a' && lower(c) <= 'f'); }
bool letter(char c) { return lower(c) >= 'a' && lower(c) <= 'z'; }
bool word_start(char c) { return letter(c) || c == '_' || c == '$' || c == '%'; }
bool word(char c) { return digit(c) || letter(c) || c == '_' || c == '$'; }

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
                if (at >= text.size()) fail("a comment that nothing ends");
                at += 2;
            } else {
                return at != start;
            }
        }
    }

    [[noreturn]] void fail(const std::string& what) const {
        throw SyntaxError{Status::invalid_ptx, line, what};
    }

    void push(Tok kind, size_t start, bool glued, uint64_t bits = 0) {
        out.push_back({kind, text.substr(start, at - start), bits, line, glued});
    }

    void number(bool glued) {
        size_t start = at;
        char second = lower(peek(1));
        if (peek() == '0' && (second == 'f' || second == 'd')) {
            size_t digits = second == 'f' ? 8 : 16;
            at += 2;
            while (at < start + 2 + digits && hexadecimal(peek())) ++at;
            if (at != start + 2 + digits || word(peek()))
                fail("'" + std::string(text.substr(start, at - start + 1)) + "' has not the " +
                     std::to_string(digits) + " digits of a floating-point number");
            uint64_t bits = std::strtoull(std::string(text.substr(start + 2, digits)).c_str(), nullptr, 16);
            return push(second == 'f' ? Tok::floating32 : Tok::floating64, start, glued, bits);
        }
        int radix = 10;
        if (peek() == '0' && second == 'x')
            radix = 16, at += 2;
        else if (peek() == '0' && second == 'b')
            radix = 2, at += 2;
        size_t digits = at;
        while (radix == 16 ? hexadecimal(peek()) : digit(peek())) ++at;
        if (radix == 10 && ((peek() == '.' && digit(peek(1))) || peek() == 'e' || peek() == 'E')) {
            std::string copy(text.substr(start, 64));
            char* end = nullptr;
            double value = std::strtod(copy.c_str(), &end);
            at = start + static_cast<size_t>(end - copy.c_str());
            if (word(peek())) fail("'" + std::string(text.substr(start, at - start + 1)) + "' is no number");
            uint64_t bits;
            std::memcpy(&bits, &value, 8);
            return push(Tok::floating64, start, glued, bits);
        }
        if (radix == 10 && text[start] == '0') radix = 8;
        const std::string copy(text.substr(digits, at - digits));
        char* end = nullptr;
        errno = 0;
        uint64_t bits = std::strtoull(copy.c_str(), &end, radix);
        if (errno == ERANGE) fail("the constant '" + copy + "' has more than 64 bits");
        if (peek() == 'U') ++at;
        if (copy.empty() || *end || word(peek()))
            fail("'" + std::string(text.substr(start, at - start + 1)) + "' is no number");
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
                if (at >= text.size()) fail("a string that nothing ends");
                ++at;
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

std::vector<Token> lex(std::string_view text, uint32_t line) {
    Lexer lexer{text, 0, line};
    lexer.out.reserve(text.size() / 4);
    lexer.run();
    return std::move(lexer.out);
}

}  // namespace gpukernel::simgpu::ptx
