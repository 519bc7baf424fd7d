// The facts of a device: the answer of the custom call `device`, which both ends keep.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace gpukernel::wire {

// What a worker knows beyond its version of the protocol: bits of attributes[0], which is no attribute's
// number.
constexpr int32_t KEEPS_BLOCKS = 1, HAS_MANAGED_VARIABLES = 2, SHARES_PHYSICAL = 4, HAS_BORDER_COLORS = 8,
                  WANTS_RANGES = 16, TELLS_OF_STREAMS = 32, TELLS_OF_REFUSALS = 64, READS_MORE_EARLY = 128;

struct DeviceFacts {
    char name[256];
    CUuuid uuid;
    uint64_t memory_bytes;
    int32_t driver_version;  // in cuDriverGetVersion's form
    char bus_id[32];
    int32_t attributes[256];
    uint8_t known[256];
    uint8_t keeps_images, image_salt[32];  // whether images have names, and their salt (protocol.h)
    char driver_name[64];                  // NVIDIA's driver version, "575.57.08"; empty: unknown
};

}  // namespace gpukernel::wire
