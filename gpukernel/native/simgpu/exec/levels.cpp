// Which of the compiled handlers this processor runs.
#include <algorithm>
#include <cstdlib>
#include <unordered_map>

#include "machine.h"

namespace gpukernel::simgpu {

#define SIMGPU_TABLES(level)                                                                       \
    extern const HandlerTable integer_##level, compare_##level, floating_##level, convert_##level, \
        memory_##level, atomic_##level, warp_##level;                                              \
    static const HandlerTable* const tables_##level[] = {                                          \
        &integer_##level, &compare_##level, &floating_##level, &convert_##level,                   \
        &memory_##level,  &atomic_##level,  &warp_##level};
SIMGPU_TABLES(v2)
SIMGPU_TABLES(v3)
SIMGPU_TABLES(v4)

Handler find_handler(std::string_view key) {
    static const auto map = [] {
        __builtin_cpu_init();
        int level = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512vl")
                        ? 4
                    : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                            __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c")
                        ? 3
                        : 2;
        if (const char* forced = getenv("GPUKERNEL_SIMGPU_LEVEL")) level = std::min(level, atoi(forced));
        std::unordered_map<std::string_view, Handler> out;
        for (const HandlerTable* table : level == 4 ? tables_v4 : level == 3 ? tables_v3 : tables_v2)
            for (size_t i = 0; i < table->count; ++i)
                out.emplace(table->entries[i].key, table->entries[i].fn);
        return out;
    }();
    auto it = map.find(key);
    return it == map.end() ? nullptr : it->second;
}

}  // namespace gpukernel::simgpu
