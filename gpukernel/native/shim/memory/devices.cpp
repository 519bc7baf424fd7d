#include "shim/memory/devices.h"

#include "shim/graphs/memory.h"
#include "shim/managed/managed.h"
#include "shim/memory/memory.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

namespace {
bool holds(Device& device, CUdeviceptr address) {
    Request request(device.connection,
                    wire::PointerAttributeRequest{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address});
    return request.send() == CUDA_SUCCESS &&
           request.answer<wire::PointerAttributeAnswer>().value == CU_MEMORYTYPE_DEVICE;
}
}  // namespace

Device* holder(Device& current, CUdeviceptr address) {
    if (is_managed(address) || is_graph_memory(address) || holds(current, address)) return &current;
    for (const auto& device : process()->devices)
        if (device.get() != &current && holds(*device, address)) return device.get();
    return nullptr;
}

std::optional<CUresult> copy_between_devices(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                             CUstream stream) {
    if (process()->devices.size() == 1 || !bytes) return std::nullopt;
    Device* const current = context_stack().back()->device;
    Device* const target = holder(*current, to);
    Device* const source = target ? holder(*current, from) : nullptr;
    if (!source || (target == current && source == current)) return std::nullopt;
    return cuMemcpyPeerAsync(to, target->primary.get(), from, source->primary.get(), bytes, stream);
}

}  // namespace gpukernel::shim
