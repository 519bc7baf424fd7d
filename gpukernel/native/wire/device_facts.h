// What a worker tells of its device once: the answer to Special::device, as both ends keep it.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace gpukernel::wire {

struct DeviceFacts {
    char name[256];
    CUuuid uuid;
    uint64_t memory_bytes;
    int32_t driver_version;  // as cuDriverGetVersion has it
    char bus_id[32];
    int32_t attributes[256];
    uint8_t known[256];
    uint8_t keeps_images, image_salt[32];  // how images are named (protocol.h)
    char driver_name[64];                  // NVIDIA's driver version, "575.57.08"; empty where it is not told
};

}  // namespace gpukernel::wire
