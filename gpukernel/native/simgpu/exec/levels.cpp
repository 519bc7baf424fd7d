// The choice among the compiled handlers: the newest level of x86-64 that this processor has.
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "simgpu/exec/machine.h"
#include "simgpu/exec/processor.h"

namespace gpukernel::simgpu {

#define SIMGPU_TABLES(level)                                                                         \
    extern const HandlerTable integer_##level, compare_##level, floating_##level, half_##level,      \
        convert_##level, memory_##level, atomic_##level, async_##level, video_##level, warp_##level, \
        texture_##level, matrix_##level, tensor_##level, warpgroup_##level;                          \
    static const HandlerTable* const tables_##level[] = {                                            \
        &integer_##level, &compare_##level, &floating_##level, &half_##level,     &convert_##level,  \
        &memory_##level,  &atomic_##level,  &async_##level,    &video_##level,    &warp_##level,     \
        &texture_##level, &matrix_##level,  &tensor_##level,   &warpgroup_##level};
#ifdef SIMGPU_WITH_V2
SIMGPU_TABLES(v2)
#endif
#ifdef SIMGPU_WITH_V3
SIMGPU_TABLES(v3)
#endif
#ifdef SIMGPU_WITH_V4
SIMGPU_TABLES(v4)
#endif

namespace {

struct Level {
    int number;
    std::span<const HandlerTable* const> tables;
};
const Level levels[] = {
#ifdef SIMGPU_WITH_V2
    {2, tables_v2},
#endif
#ifdef SIMGPU_WITH_V3
    {3, tables_v3},
#endif
#ifdef SIMGPU_WITH_V4
    {4, tables_v4},
#endif
};

// The newest level that this processor has and nobody forbade; the oldest that was compiled where none fits,
// for whoever reads handlers only: there the driver does not start.
const Level& best() {
    const int wanted = wanted_level();
    const Level* found = &levels[0];
    for (const Level& level : levels)
        if (level.number <= wanted) found = &level;
    return *found;
}

}  // namespace

int oldest_level() { return levels[0].number; }

Handler find_handler(std::string_view key) {
    static const auto& map = *new auto([] {
        std::unordered_map<std::string_view, Handler> out;
        for (const HandlerTable* table : best().tables)
            for (size_t i = 0; i < table->count; ++i)
                out.emplace(table->entries[i].key, table->entries[i].fn);
        return out;
    }());
    auto it = map.find(key);
    return it == map.end() ? nullptr : it->second;
}

static const std::unordered_map<Handler, std::string_view>& names() {
    static const auto& map = *new auto([] {
        std::unordered_map<Handler, std::string_view> out;
        for (const HandlerTable* table : best().tables)
            for (size_t i = 0; i < table->count; ++i)
                out.emplace(table->entries[i].fn, table->entries[i].key);
        return out;
    }());
    return map;
}

std::string_view handler_name(Handler handler) {
    auto it = names().find(handler);
    return it == names().end() ? std::string_view{} : it->second;
}

std::vector<std::string_view> handler_names() {
    std::vector<std::string_view> out;
    for (const auto& [handler, name] : names()) out.push_back(name);
    return out;
}

bool does_several(Handler handler) {
    static const auto& set = *new auto([] {
        std::unordered_set<Handler> out;
        for (const HandlerTable* table : best().tables)
            for (size_t i = 0; i < table->count; ++i)
                if (table->entries[i].several) out.insert(table->entries[i].fn);
        return out;
    }());
    return set.contains(handler);
}

}  // namespace gpukernel::simgpu
