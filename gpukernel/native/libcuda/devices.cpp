// Devices and their properties (driver API chapter "Device Management").
#include <cstring>

#include "libcuda/entry_points.h"
#include "libcuda/library.h"

using namespace gpukernel::libcuda;

namespace {
// Cut to what the caller has room for, and always ended.
CUresult put_text(const std::string& text, char* to, int room) {
    if (!to || room < 1) return CUDA_ERROR_INVALID_VALUE;
    std::strncpy(to, text.c_str(), room - 1);
    to[room - 1] = 0;
    return CUDA_SUCCESS;
}
}  // namespace

CUresult CUDAAPI cuDeviceGetCount(int* count) {
    if (CUresult error = initialised(); error != CUDA_SUCCESS) return error;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = device_count();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
    GPUKERNEL_DEVICE(found, ordinal);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = number_of(*found);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char* name, int len, CUdevice dev) {
    GPUKERNEL_DEVICE(found, dev);
    return put_text(name_of(*found), name, len);
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
    GPUKERNEL_DEVICE(found, dev);
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    *uuid = uuid_of(*found);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) { return cuDeviceGetUuid_v2(uuid, dev); }

CUresult CUDAAPI cuDeviceTotalMem(size_t* bytes, CUdevice dev) {
    GPUKERNEL_DEVICE(found, dev);
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *bytes = total_memory(*found);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
    GPUKERNEL_DEVICE(found, dev);
    return pi && attribute_of(*found, attrib, *pi) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuDeviceComputeCapability(int* major, int* minor, CUdevice dev) {
    GPUKERNEL_DEVICE(found, dev);
    if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
    *major = *minor = 0;
    attribute_of(*found, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, *major);
    attribute_of(*found, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, *minor);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) {
    GPUKERNEL_DEVICE(found, dev);
    const std::string text = bus_id_of(*found);
    // A part of it would name another device, or none.  The driver API asks for room for 13 characters.
    if (len < 0 || static_cast<size_t>(len) <= text.size()) return CUDA_ERROR_INVALID_VALUE;
    return put_text(text, pciBusId, len);
}

CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice* dev, const char* pciBusId) {
    if (CUresult error = initialised(); error != CUDA_SUCCESS) return error;
    gpukernel::BusPlace wanted, place;
    if (!dev || !gpukernel::bus_place(pciBusId, wanted)) return CUDA_ERROR_INVALID_VALUE;
    for (int number = 0; const Device* device = device_at(number); ++number)
        if (gpukernel::bus_place(bus_id_of(*device).c_str(), place) && place == wanted)
            return *dev = number, CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_DEVICE;
}

// Devices do not reach each other's memory: what goes between them passes through the program.
CUresult CUDAAPI cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) {
    GPUKERNEL_DEVICE(found, dev);
    if (!canAccessPeer || !device_at(peerDev)) return CUDA_ERROR_INVALID_VALUE;
    *canAccessPeer = 0;
    return CUDA_SUCCESS;
}
