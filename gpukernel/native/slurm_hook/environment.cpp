#include "slurm_hook/environment.h"

#include <algorithm>
#include <vector>

namespace gpukernel::slurm_hook {

namespace {
std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    while (!text.empty()) {
        const size_t end = std::min(text.find(separator), text.size());
        if (end) parts.push_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return parts;
}

std::string joined(const std::vector<std::string_view>& parts, char separator) {
    std::string text;
    for (const std::string_view part : parts) {
        if (!text.empty()) text += separator;
        text += part;
    }
    return text;
}

// `given` without the parts of `own`, which then stand before or after it.
std::string with_own(std::string_view given, std::string_view own, char separator, bool first) {
    std::vector<std::string_view> parts = split(given, separator), ours = split(own, separator);
    std::erase_if(parts, [&](auto part) { return std::ranges::find(ours, part) != ours.end(); });
    parts.insert(first ? parts.begin() : parts.end(), ours.begin(), ours.end());
    return joined(parts, separator);
}

// Whether the user has named a flag of this name, with a value that is not ours.
bool is_named(std::string_view given, std::string_view flag) {
    const std::string_view name = flag.substr(0, flag.find('='));
    const auto parts = split(given, ' ');
    return std::ranges::any_of(
        parts, [&](auto part) { return part != flag && part.substr(0, part.find('=')) == name; });
}

std::string next_word(std::string_view& line) {
    const size_t end = std::min(line.find(' '), line.size());
    const std::string word(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
    return word;
}
}  // namespace

std::string task_lines(std::string_view recipe, const std::function<std::string(const std::string&)>& get) {
    std::string lines;
    for (std::string_view line : split(recipe, '\n')) {
        const std::string how = next_word(line), name = next_word(line), given = get(name);
        std::string value(line);
        if (how == "unset") {
            if (!given.empty()) lines += "unset " + name + "\n";
            continue;
        }
        if (how == "first" || how == "last") value = with_own(given, line, ':', how == "first");
        if (how == "default" && !given.empty()) continue;
        if (how == "flags") {
            const auto flags = split(line, ' ');
            if (flags.empty() || is_named(given, flags[0])) continue;
            value = with_own(given, line, ' ', false);
        }
        if (value == given) continue;
        if (value.find('\n') == std::string::npos)
            lines += "export " + name + "=" + value + "\n";
        else
            lines += "print gpukernel: " + name +
                     " has a line break, so that a slice is not found by it; set it without.\n";
    }
    return lines;
}

}  // namespace gpukernel::slurm_hook
