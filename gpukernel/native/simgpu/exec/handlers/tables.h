// Each handler file's table, named for the x86-64 level that it was compiled for.
#pragma once
#include "simgpu/exec/machine.h"
#define SIMGPU_JOIN2(a, b) a##_##b
#define SIMGPU_JOIN(a, b) SIMGPU_JOIN2(a, b)
#define HANDLER_TABLE(name)                                    \
    extern const HandlerTable SIMGPU_JOIN(name, SIMGPU_LEVEL); \
    const HandlerTable SIMGPU_JOIN(name, SIMGPU_LEVEL) = {entries, sizeof entries / sizeof entries[0]};
