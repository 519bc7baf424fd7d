#include "oci_hook/state.h"

#include <algorithm>
#include <charconv>

namespace gpukernel::oci_hook {

namespace {
constexpr size_t LONGEST_ID = 200;

class Walk {
  public:
    explicit Walk(std::string_view text) : text_(text) {}

    bool take(char c) {
        blank();
        if (at_ >= text_.size() || text_[at_] != c) return false;
        ++at_;
        return true;
    }
    // A string as it stands between its quotes: what is escaped stays so.
    bool string(std::string_view& found) {
        if (!take('"')) return false;
        const size_t from = at_;
        for (; at_ < text_.size() && text_[at_] != '"'; ++at_)
            if (text_[at_] == '\\') ++at_;
        if (at_ >= text_.size()) return false;
        found = text_.substr(from, at_++ - from);
        return true;
    }
    // Any value; `found` is its text.
    bool value(std::string_view& found) {
        blank();
        const size_t from = at_;
        if (at_ >= text_.size()) return false;
        std::string_view inner;
        if (text_[at_] == '"') {
            if (!string(inner)) return false;
        } else if (text_[at_] == '{' || text_[at_] == '[') {
            size_t depth = 0;
            do {
                if (at_ >= text_.size()) return false;
                const char c = text_[at_];
                if (c == '"') {
                    if (!string(inner)) return false;
                    continue;
                }
                if (c == '{' || c == '[') ++depth;
                if (c == '}' || c == ']') --depth;
                ++at_;
            } while (depth);
        } else {
            at_ = std::min(text_.find_first_of(",}] \t\r\n", at_), text_.size());
        }
        found = text_.substr(from, at_ - from);
        return !found.empty();
    }

  private:
    void blank() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }
    std::string_view text_;
    size_t at_ = 0;
};

bool is_id(std::string_view text) {
    constexpr std::string_view ALLOWED = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.+";
    return !text.empty() && text.size() <= LONGEST_ID && text[0] != '.' &&
           text.find_first_not_of(ALLOWED) == std::string_view::npos;
}
}  // namespace

std::optional<State> parse_state(std::string_view text) {
    Walk walk(text);
    State state;
    std::string_view name, value;
    if (!walk.take('{')) return std::nullopt;
    do {
        if (!walk.string(name) || !walk.take(':') || !walk.value(value)) return std::nullopt;
        if (name == "id" && value.size() > 2) state.id = value.substr(1, value.size() - 2);
        if (name == "pid") {
            const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), state.pid);
            if (error != std::errc() || end != value.data() + value.size() || state.pid < 0)
                return std::nullopt;
        }
    } while (walk.take(','));
    if (!walk.take('}') || !is_id(state.id)) return std::nullopt;
    return state;
}

}  // namespace gpukernel::oci_hook
