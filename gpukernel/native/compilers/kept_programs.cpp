#include "compilers/kept_programs.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "common/sha256.h"

namespace gpukernel::compilers {
namespace {

constexpr std::string_view kForm = "gpukernel NVRTC program 1\n";
constexpr size_t kMostOfOne = 16 << 20, kMostOfAll = 256 << 20;  // bytes
constexpr size_t kDigest = sizeof(wire::Digest);

void put(std::string& to, std::string_view text) {
    const uint64_t size = text.size();
    to.append(reinterpret_cast<const char*>(&size), sizeof size).append(text);
}
// The next of several texts; false: there is none.
bool take(std::string_view& from, std::string& text) {
    uint64_t size;
    if (from.size() < sizeof size) return false;
    std::memcpy(&size, from.data(), sizeof size);
    from.remove_prefix(sizeof size);
    if (size > from.size()) return false;
    text = from.substr(0, size);
    from.remove_prefix(size);
    return true;
}

std::string digest_of(std::string_view text) {
    const wire::Digest digest = wire::sha256({text});
    return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string key_of(const std::string& library, const Given& given) {
    std::string all;
    put(all, kForm), put(all, library), put(all, given.source), put(all, given.name);
    for (const auto* list : {&given.headers, &given.header_names, &given.expressions, &given.options}) {
        put(all, std::to_string(list->size()));
        for (const std::string& each : *list) put(all, each);
    }
    return digest_of(all);
}
std::string path_of(const std::string& folder, const std::string& key) {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string path = folder + "/";
    for (const char c : key) {
        const auto byte = static_cast<unsigned char>(c);
        path += kDigits[byte >> 4], path += kDigits[byte & 15];
    }
    return path;
}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\v' || c == '\f'; }

// Whether a line with the word is `#include "NAME"` or `#include <NAME>` of a header that was given.
bool includes_given(std::string_view line, const std::vector<std::string>& names) {
    const auto skip = [&line] {
        while (!line.empty() && is_blank(line.front())) line.remove_prefix(1);
    };
    skip();
    if (!line.starts_with('#')) return false;
    line.remove_prefix(1), skip();
    if (!line.starts_with("include")) return false;
    line.remove_prefix(7), skip();
    if (line.empty() || (line.front() != '"' && line.front() != '<')) return false;
    const char end = line.front() == '"' ? '"' : '>';
    line.remove_prefix(1);
    const size_t at = line.find(end);
    if (at == line.npos || line.find('#', at) != line.npos) return false;
    return std::find(names.begin(), names.end(), line.substr(0, at)) != names.end();
}

// The length of what makes one line of two, where a text goes on so; else 0.
size_t splice(std::string_view text) {
    for (const std::string_view each : {"\\\r\n", "\\\n", "\?\?/\r\n", "\?\?/\n"})
        if (text.starts_with(each)) return each.size();
    return 0;
}
// Whether the name of a directive may follow behind a comment.
bool ends_at_comment(std::string_view line) {
    for (size_t mark = line.find('#'); mark != line.npos; mark = line.find('#', mark + 1)) {
        const size_t name = line.find_first_not_of(" \t\v\f", mark + 1);
        if (name != line.npos && line[name] == '/') return true;
    }
    return false;
}

// A text in which no directive reads anything but the headers that were given.  It is asked for more than the
// language needs: what cannot be told from a directive is one.
bool is_closed(std::string_view given, const std::vector<std::string>& names) {
    std::string text;
    text.reserve(given.size());
    for (size_t at = 0; at < given.size();) {
        const size_t next = std::min(given.find_first_of("\\?", at), given.size());
        text += given.substr(at, next - at);
        const size_t length = splice(given.substr(next));
        if (!length && next < given.size()) text += given[next];
        at = next + std::max<size_t>(length, 1);
    }
    for (const char* other : {"__DATE__", "__TIME__", "__TIMESTAMP__", "__has_include", "__has_embed",
                              "\?\?=", "%:", "\\\r\n", "\\\n", "\?\?/\r\n", "\?\?/\n"})
        if (text.find(other) != text.npos) return false;
    bool directive = false;  // some # of the text before has a comment for its name
    std::string_view left = text;
    while (!left.empty()) {
        const size_t end = std::min(left.find_first_of("\r\n"), left.size());
        const std::string_view line = left.substr(0, end);
        left.remove_prefix(std::min(end + 1, left.size()));
        const bool marked = line.find('#') != line.npos;
        const bool reads = line.find("include") != line.npos || line.find("embed") != line.npos ||
                           line.find("import") != line.npos;
        if (reads && (directive || marked) && !includes_given(line, names)) return false;
        directive |= ends_at_comment(line);
    }
    return true;
}

// The whole of a regular file of the user's own, or nothing.
std::string read_file(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) return {};
    std::string text;
    struct stat is;
    if (!fstat(file, &is) && S_ISREG(is.st_mode) && is.st_uid == geteuid() && !(is.st_mode & 022) &&
        is.st_size > 0 && static_cast<size_t>(is.st_size) <= kMostOfOne + kMostOfOne) {
        text.resize(static_cast<size_t>(is.st_size));
        size_t got = 0;
        for (ssize_t n; got < text.size() && (n = read(file, &text[got], text.size() - got)) > 0;)
            got += static_cast<size_t>(n);
        text.resize(got);
    }
    close(file);
    return text;
}

bool make_folder(const std::string& folder) {
    for (size_t at = folder.find('/', 1); at != folder.npos; at = folder.find('/', at + 1))
        mkdir(folder.substr(0, at).c_str(), 0700);
    mkdir(folder.c_str(), 0700);
    struct stat is;
    return !stat(folder.c_str(), &is) && S_ISDIR(is.st_mode) && is.st_uid == geteuid() && !(is.st_mode & 022);
}

// A program's file, or one that is not written to its end.  The folder may have others that are not this
// library's: whoever named it may have more there.
bool is_kept(std::string_view name) {
    constexpr size_t kDigits = 2 * kDigest;
    return (name.size() == kDigits || (name.size() == kDigits + 7 && name[kDigits] == '.')) &&
           name.substr(0, kDigits).find_first_not_of("0123456789abcdef") == name.npos;
}

// Removes what has not been wanted for longest, until there is room.
void make_room(const std::string& folder) {
    struct Entry {
        timespec wanted;
        size_t bytes;
        std::string path;
    };
    std::vector<Entry> all;
    size_t bytes = 0;
    DIR* list = opendir(folder.c_str());
    if (!list) return;
    while (const dirent* each = readdir(list)) {
        if (!is_kept(each->d_name)) continue;
        const std::string path = folder + "/" + each->d_name;
        struct stat is;
        if (lstat(path.c_str(), &is) || !S_ISREG(is.st_mode)) continue;
        all.push_back({is.st_mtim, static_cast<size_t>(is.st_size), path});
        bytes += all.back().bytes;
    }
    closedir(list);
    if (bytes <= kMostOfAll) return;
    std::sort(all.begin(), all.end(), [](const Entry& a, const Entry& b) {
        return a.wanted.tv_sec != b.wanted.tv_sec ? a.wanted.tv_sec < b.wanted.tv_sec
                                                  : a.wanted.tv_nsec < b.wanted.tv_nsec;
    });
    for (const Entry& each : all) {
        if (bytes <= kMostOfAll / 4 * 3) break;
        if (!unlink(each.path.c_str())) bytes -= each.bytes;
    }
}

}  // namespace

bool is_closed(const Given& given) {
    // Options by which more is read or written than a program's own text: files, the time, and the working
    // directory, of which information for debuggers tells.
    for (const std::string& option : given.options)
        for (const char* other :
             {"include", "-I", "pch", "-dlto", "-ltoir", "--dlink-time-opt", "-time", "trace", "@", "embed",
              "__DATE__", "__TIME__", "__TIMESTAMP__", "-G", "debug", "line"})
            if (option.find(other) != option.npos) return false;
    size_t bytes = given.source.size();
    for (const std::string& header : given.headers) bytes += header.size();
    if (bytes > kMostOfOne) return false;
    return is_closed(given.source, given.header_names) &&
           std::all_of(given.headers.begin(), given.headers.end(),
                       [&given](const std::string& text) { return is_closed(text, given.header_names); });
}

std::string folder_of_programs() {
    const auto named = [](const char* variable) {
        const char* value = std::getenv(variable);
        return std::string(value ? value : "");
    };
    if (const std::string own = named("GPUKERNEL_NVRTC_CACHE"); !own.empty())
        return own.front() == '/' ? own : "";
    if (const std::string cache = named("XDG_CACHE_HOME"); cache.starts_with('/'))
        return cache + "/gpukernel/nvrtc";
    const std::string home = named("HOME");
    return home.starts_with('/') ? home + "/.cache/gpukernel/nvrtc" : "";
}

std::optional<Made> find_program(const std::string& folder, const std::string& library, const Given& given) {
    const std::string key = key_of(library, given), path = path_of(folder, key), text = read_file(path);
    std::string_view left = text;
    if (left.size() < kDigest || digest_of(left.substr(kDigest)) != left.substr(0, kDigest)) return {};
    left.remove_prefix(kDigest);
    Made made;
    std::string form, its_key, gpu, expression, name;
    if (!take(left, form) || form != kForm || !take(left, its_key) || its_key != key ||
        !take(left, made.ptx) || !take(left, made.log) || !take(left, gpu))
        return {};
    made.for_a_gpu = gpu == "1";
    while (take(left, expression) && take(left, name)) made.lowered[expression] = name;
    if (!left.empty()) return {};
    utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
    return made;
}

void keep_program(const std::string& folder, const std::string& library, const Given& given,
                  const Made& made) {
    if (made.ptx.size() + made.log.size() > kMostOfOne || !make_folder(folder)) return;
    const std::string key = key_of(library, given), path = path_of(folder, key);
    std::string text;
    put(text, kForm), put(text, key), put(text, made.ptx), put(text, made.log);
    put(text, made.for_a_gpu ? "1" : "0");
    for (const auto& [expression, name] : made.lowered) put(text, expression), put(text, name);
    text.insert(0, digest_of(text));
    std::string fresh = path + ".XXXXXX";
    const int file = mkostemp(fresh.data(), O_CLOEXEC);
    if (file < 0) return;
    size_t done = 0;
    for (ssize_t n; done < text.size() && (n = write(file, &text[done], text.size() - done)) > 0;)
        done += static_cast<size_t>(n);
    if (close(file) || done < text.size() || rename(fresh.c_str(), path.c_str())) unlink(fresh.c_str());
    make_room(folder);
}

}  // namespace gpukernel::compilers
