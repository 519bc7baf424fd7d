// The attributes of a simulated device (cuDeviceGetAttribute): the model's figures, and limits that all
// models share.
#include "libcuda/entry_points.h"
#include "simgpu/driver/state.h"

using namespace gpukernel::simgpu;

namespace {
// `known` becomes false for an attribute that there is not.
int value_of(const Device& device, CUdevice_attribute attribute, bool& known) {
    const Model& m = *device.model;
    known = true;
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
            return 1024;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
            return 1024;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
            return 1024;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
            return 64;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
            return 2147483647;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
            return 65535;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
            return 65535;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
            return 48 << 10;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
            return m.shared_per_block_optin;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
            return m.shared_per_multiprocessor;
        case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
            return m.major >= 8 ? 1024 : 0;
        case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
            return 64 << 10;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
            return 32;
        case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
            return 2147483647;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
            return 65536;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
            return 65536;
        case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
            return m.clock_khz;
        case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
            return m.memory_clock_khz;
        case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
            return m.bus_bits;
        case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
            return m.l2_bytes;
        case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
            return 512;
        case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:
            return 32;
        case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT:
            return 512;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
            return m.multiprocessors;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
            return m.threads_per_multiprocessor;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
            return m.blocks_per_multiprocessor;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
            return m.major;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
            return m.minor;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
            return CU_COMPUTEMODE_DEFAULT;
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
        case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
        case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
        case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
        case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
        case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
            return 1;
        case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
        case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED:
            return m.major >= 9;
        case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
            return 2;
        case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
            return device.machine_index + 1;
        case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:
            return m.major == 12 ? 64 : m.minor == 5 ? 32 : 2;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
            return 1;
        case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
            return 1;
        default:
            if (int value; texture_limit(attribute, value)) return value;
            known = attribute > 0 && attribute < gpukernel::device_attributes;  // everything that is lacking
            return 0;
    }
}
}  // namespace

bool gpukernel::libcuda::attribute_of(const Device& device, CUdevice_attribute attribute, int& value) {
    bool known = false;
    const int found = value_of(static_cast<const simgpu::Device&>(device), attribute, known);
    if (known) value = found;
    return known;
}
