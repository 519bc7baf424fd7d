// NVTX's functions, as a tool provides them ("nvtxDetail/nvtxTypes.h" of NVTX's public headers).
//
// A program has NVTX compiled in.  At its first range NVTX loads the library that NVTX_INJECTION64_PATH names
// and calls InitializeInjectionNvtx2, which puts its own functions into NVTX's tables.
#include "libcuda/nvtx.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common/kernel_table.h"
#include "libcuda/library.h"

namespace gpukernel::libcuda {
namespace {

constexpr size_t MOST_NAME = 64;  // bytes of a range's name or a domain's
constexpr size_t MOST_DOMAINS = 256, MOST_STRINGS = 16384, MOST_STARTED = 256, MOST_PUSHED = 1024;

// Event attributes of version 2 and later, of which a tool reads as much as `size` says.
struct EventAttributes {
    uint16_t version, size;
    uint32_t category;
    int32_t colour_type;
    uint32_t colour;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const void* message;
};
static_assert(sizeof(EventAttributes) == 48);
enum MessageType : int32_t { ascii = 1, unicode = 2, registered = 3 };

// Names are a person's: no control characters, and none of what parts a range from the next.
std::string clean(std::string_view text) {
    std::string name;
    for (const char c : text) {
        const auto code = static_cast<unsigned char>(c);
        if (c == '/')
            name += "∕";
        else
            name += code < 0x20 || code == 0x7f ? ' ' : c;
        if (name.size() > MOST_NAME) break;
    }
    if (name.size() <= MOST_NAME) return name;
    size_t end = MOST_NAME - std::string_view("…").size();
    while (end && (static_cast<unsigned char>(name[end]) & 0xc0) == 0x80) --end;
    return name.substr(0, end) + "…";
}
std::string name_of(const char* text) {
    return text ? clean(std::string_view(text, ::strnlen(text, 4 * MOST_NAME))) : std::string();
}
std::string name_of(const wchar_t* text) {
    std::string bytes;
    for (size_t n = 0; text && text[n] && n < MOST_NAME + 1; ++n) {
        const auto code = static_cast<uint32_t>(text[n]);
        const auto put = [&](uint32_t value) { bytes += static_cast<char>(value); };
        if (code < 0x80) {
            put(code);
        } else if (code < 0x800) {
            put(0xc0 | code >> 6), put(0x80 | (code & 0x3f));
        } else if (code < 0x10000) {
            put(0xe0 | code >> 12), put(0x80 | (code >> 6 & 0x3f)), put(0x80 | (code & 0x3f));
        } else {
            put(0xf0 | (code >> 18 & 7)), put(0x80 | (code >> 12 & 0x3f));
            put(0x80 | (code >> 6 & 0x3f)), put(0x80 | (code & 0x3f));
        }
    }
    return clean(bytes);
}

struct Domain {
    std::string name;
};
struct Range {
    const Domain* domain;  // nullptr: the default one
    std::string name;
};

// What is the process's.
struct Marked {
    std::mutex mutex;
    std::deque<Domain> domains;  // never taken away: ranges refer to them
    std::unordered_map<std::string, Domain*> by_name;
    Domain others{"(more domains)"};
    std::unordered_map<const void*, std::unique_ptr<std::string>> strings;
    std::string unnamed = "(more names)";
    std::map<uint64_t, Range> started;
    std::atomic<uint64_t> number{0};   // of the last range that was started
    std::atomic<uint64_t> changes{0};  // of `started`
};
Marked& marked() {
    static Marked* const only = new Marked;  // threads may outlive main
    return *only;
}

// What is a thread's.
struct Pushed {
    std::vector<Range> ranges;
    uint64_t beyond = 0;  // that found no room
    uint64_t changes = 0;
    bool stale = true;
    std::string text;
};
GPUKERNEL_STATIC_THREAD_LOCAL Pushed* pushed = nullptr;
Pushed& of_this_thread() {
    // Destructors of a program's statics may come after it: they begin anew.
    struct End {
        ~End() {
            delete pushed;
            pushed = nullptr;
        }
    };
    if (!pushed) {
        pushed = new Pushed, has_marked_ranges = true;
        thread_local const End end;
        (void)end;
    }
    return *pushed;
}

std::string message_of(const EventAttributes* event) {
    if (!event || event->size < sizeof *event) return "(no name)";
    std::string name;
    if (event->message_type == ascii) name = name_of(static_cast<const char*>(event->message));
    if (event->message_type == unicode) name = name_of(static_cast<const wchar_t*>(event->message));
    if (event->message_type == registered) {
        Marked& all = marked();
        std::lock_guard lock(all.mutex);
        if (const auto found = all.strings.find(event->message); found != all.strings.end())
            name = *found->second;
        else if (event->message == &all.unnamed)
            name = all.unnamed;
    }
    return name.empty() ? "(no name)" : name;
}

int push(const Domain* domain, std::string name) {
    Pushed& mine = of_this_thread();
    const auto level = std::count_if(mine.ranges.begin(), mine.ranges.end(),
                                     [&](const Range& one) { return one.domain == domain; });
    if (mine.ranges.size() == MOST_PUSHED)
        ++mine.beyond;
    else
        mine.ranges.push_back({domain, std::move(name)}), mine.stale = true;
    return static_cast<int>(level);
}
int pop(const Domain* domain) {
    Pushed& mine = of_this_thread();
    if (mine.beyond) return static_cast<int>(--mine.beyond);
    const auto last = std::find_if(mine.ranges.rbegin(), mine.ranges.rend(),
                                   [&](const Range& one) { return one.domain == domain; });
    if (last == mine.ranges.rend()) return -1;  // there is none
    mine.ranges.erase(std::next(last).base());
    mine.stale = true;
    return static_cast<int>(std::count_if(mine.ranges.begin(), mine.ranges.end(),
                                          [&](const Range& one) { return one.domain == domain; }));
}
uint64_t start(const Domain* domain, std::string name) {
    Marked& all = marked();
    const uint64_t number = ++all.number;
    std::lock_guard lock(all.mutex);
    if (all.started.size() < MOST_STARTED)
        all.started[number] = {domain, std::move(name)}, ++all.changes, has_marked_ranges = true;
    return number;
}
void end(uint64_t number) {
    Marked& all = marked();
    std::lock_guard lock(all.mutex);
    if (all.started.erase(number)) ++all.changes;
}
Domain* domain_of(std::string name) {
    Marked& all = marked();
    std::lock_guard lock(all.mutex);
    if (const auto found = all.by_name.find(name); found != all.by_name.end()) return found->second;
    if (all.domains.size() == MOST_DOMAINS) return &all.others;
    Domain& made = all.domains.emplace_back(Domain{name});
    all.by_name[std::move(name)] = &made;
    return &made;
}
const void* string_of(std::string name) {
    Marked& all = marked();
    std::lock_guard lock(all.mutex);
    if (all.strings.size() == MOST_STRINGS) return &all.unnamed;
    auto made = std::make_unique<std::string>(std::move(name));
    const void* handle = made.get();
    all.strings[handle] = std::move(made);
    return handle;
}

// False: there is no more room.
bool add(std::string& text, const Range& one) {
    if (!text.empty()) text += '/';
    if (one.domain) text += one.domain->name + ": ";
    text += one.name;
    if (text.size() <= MOST_RANGE) return true;
    size_t last = MOST_RANGE - std::string_view("…").size();
    while (last && (static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
    text.resize(last);
    text += "…";
    return false;
}

// Module and number of each function in NVTX's tables.
constexpr int CORE = 1, CORE2 = 5;
using Function = void (*)();
struct Entry {
    unsigned number;
    Function function;
};
template <class F>
Function plain(F* function) {
    return reinterpret_cast<Function>(function);
}
const Entry core[] = {
    {4, plain(+[](const EventAttributes* e) -> uint64_t { return start(nullptr, message_of(e)); })},
    {5, plain(+[](const char* text) -> uint64_t { return start(nullptr, name_of(text)); })},
    {6, plain(+[](const wchar_t* text) -> uint64_t { return start(nullptr, name_of(text)); })},
    {7, plain(+[](uint64_t number) { end(number); })},
    {8, plain(+[](const EventAttributes* e) -> int { return push(nullptr, message_of(e)); })},
    {9, plain(+[](const char* text) -> int { return push(nullptr, name_of(text)); })},
    {10, plain(+[](const wchar_t* text) -> int { return push(nullptr, name_of(text)); })},
    {11, plain(+[]() -> int { return pop(nullptr); })},
};
const Entry core2[] = {
    {2,
     plain(+[](const Domain* d, const EventAttributes* e) -> uint64_t { return start(d, message_of(e)); })},
    {3, plain(+[](const Domain*, uint64_t number) { end(number); })},
    {4, plain(+[](const Domain* d, const EventAttributes* e) -> int { return push(d, message_of(e)); })},
    {5, plain(+[](const Domain* d) -> int { return pop(d); })},
    {10, plain(+[](const Domain*, const char* text) -> const void* { return string_of(name_of(text)); })},
    {11, plain(+[](const Domain*, const wchar_t* text) -> const void* { return string_of(name_of(text)); })},
    {12, plain(+[](const char* text) -> Domain* { return domain_of(name_of(text)); })},
    {13, plain(+[](const wchar_t* text) -> Domain* { return domain_of(name_of(text)); })},
};

struct Callbacks {  // an export table, of which more may follow
    size_t size;
    int (*functions_of)(int module, Function*** table, unsigned* count);
};

template <size_t N>
bool take(const Callbacks& tables, int module, const Entry (&entries)[N]) {
    Function** table = nullptr;
    unsigned count = 0;
    if (!tables.functions_of(module, &table, &count) || !table) return false;
    for (const Entry& one : entries)
        if (one.number < count && table[one.number]) *table[one.number] = one.function;
    return true;
}

}  // namespace

std::atomic<bool> has_marked_ranges{false};

std::string_view marked_range() {
    Marked& all = marked();
    const uint64_t changes = all.changes.load(std::memory_order_acquire);
    if (!pushed && !changes) return {};
    Pushed& mine = of_this_thread();
    if (!mine.stale && mine.changes == changes) return mine.text;
    mine.text.clear();
    bool room = true;
    {
        std::lock_guard lock(all.mutex);
        mine.changes = all.changes;
        for (const auto& [number, one] : all.started) room = room && add(mine.text, one);
    }
    for (const Range& one : mine.ranges) room = room && add(mine.text, one);
    mine.stale = false;
    return mine.text;
}

}  // namespace gpukernel::libcuda

// NVTX calls it once, before its first function; 0: the tool does without.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    const void* (*export_table)(uint32_t number)) {
    using namespace gpukernel::libcuda;
    constexpr uint32_t CALLBACKS = 1;
    const auto* tables = static_cast<const Callbacks*>(export_table(CALLBACKS));
    if (!tables || tables->size < sizeof *tables) return 0;
    return take(*tables, CORE, core) && take(*tables, CORE2, core2);
}
