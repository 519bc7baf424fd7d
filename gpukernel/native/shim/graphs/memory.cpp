#include "shim/graphs/memory.h"

#include <algorithm>
#include <unordered_map>

#include "shim/memory/virtual_memory.h"
#include "shim/modules/host_functions.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

using wire::DriverCall;
using Operation = wire::VirtualMemory;

std::atomic<int> graph_memory_ranges{0};

namespace {
constexpr uint64_t UNIT = 2 << 20, ALIGNMENT = 512;
constexpr uint64_t SMALL = UNIT / 2;                // allocations up to this size share a range
constexpr uint64_t MOST_BYTES = uint64_t{1} << 46;  // more than can be reserved

constexpr uint64_t rounded(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

struct Highest {
    uint64_t used = 0, reserved = 0;
};
struct GraphMemory {
    std::mutex mutex;  // may be taken under that of graphs; a connection's may be taken under it
    std::map<CUdeviceptr, std::shared_ptr<GraphRange>> ranges;
    std::map<const Device*, Highest> highest;
};
GraphMemory& graph_memory() {
    static GraphMemory* const instance = new GraphMemory;  // threads may be inside at exit
    return *instance;
}

// --- under the mutex ---

struct Figures {
    uint64_t used = 0, reserved = 0;
};
Figures figures(const Device& device) {
    Figures sum;
    for (const auto& [address, range] : graph_memory().ranges) {
        if (range->device != &device || !range->mapped) continue;
        sum.reserved += range->bytes;
        if (range->owned || range->live) sum.used += range->bytes;
    }
    return sum;
}

GraphRange* containing(CUdeviceptr address) {
    auto it = graph_memory().ranges.upper_bound(address);
    if (it == graph_memory().ranges.begin()) return nullptr;
    GraphRange& range = *std::prev(it)->second;
    return address - range.address < range.bytes ? &range : nullptr;
}
GraphAllocation* allocation_at(CUdeviceptr address) {
    GraphRange* range = containing(address);
    if (!range) return nullptr;
    auto slot = range->slots.upper_bound(address);
    if (slot == range->slots.begin()) return nullptr;
    GraphAllocation& found = *std::prev(slot)->second.last;
    return address - found.address < found.bytes ? &found : nullptr;
}

void set_live(GraphAllocation& allocation, bool live) {
    if (allocation.live == live || allocation.range->gone) return;
    allocation.live = live;
    allocation.range->live += live ? 1 : -1;
}

// Keeps an error of the program's own work, met here, for its next call.
void owe(Device& device, CUresult error) {
    std::lock_guard lock(device.connection.mutex);
    if (device.connection.deferred_error == CUDA_SUCCESS && error != GONE)
        device.connection.deferred_error = error;
}

bool idle(GraphRange& range, bool wait) {
    if (range.live || range.launches) return false;
    while (!range.fences.empty()) {
        const CUresult result = range.fences.back()->done(wait);
        if (result == CUDA_ERROR_NOT_READY) return false;
        if (result != CUDA_SUCCESS) owe(*range.device, result);
        range.fences.pop_back();
    }
    return true;
}

void unmap(GraphRange& range) {
    const CUresult result = ask(range.device->connection, Operation::unmap, {range.address, range.bytes});
    if (result != CUDA_SUCCESS) owe(*range.device, result);
    range.mapped = false;
}

CUresult map(GraphRange& range) {
    Connection& connection = range.device->connection;
    uint64_t memory = 0;  // 0: an error of earlier work was returned and nothing was created
    CUresult result = ask(connection, Operation::create, {range.bytes}, &memory);
    if (result != CUDA_SUCCESS) return result;
    result = ask(connection, Operation::map, {range.address, range.bytes, 0, memory});
    if (result == CUDA_SUCCESS)
        result = ask(connection, Operation::set_access,
                     {range.address, range.bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    if (result != CUDA_SUCCESS) ask(connection, Operation::unmap, {range.address, range.bytes});
    // From here on the mapping is the memory's only reference.
    const CUresult released = ask(connection, Operation::release, {memory});
    if (released != CUDA_SUCCESS) owe(*range.device, released);
    range.mapped = result == CUDA_SUCCESS;
    return result;
}

void release(GraphRange& range) {
    if (range.mapped) unmap(range);
    const CUresult result = ask(range.device->connection, Operation::free, {range.address, range.bytes});
    if (result != CUDA_SUCCESS) owe(*range.device, result);
    free_here(range.address, range.bytes);
    range.gone = true;
    range.slots.clear();
    --graph_memory_ranges;
}

// Releases physical memory that is unused, and addresses that can no longer be used; returns whether it
// released any. Where it must wait for the device, it stops after one range.
bool reclaim(const Device* device, bool of_graphs, bool wait) {
    bool some = false;
    auto& ranges = graph_memory().ranges;
    for (auto it = ranges.begin(); it != ranges.end();) {
        const std::shared_ptr<GraphRange> range = it->second;
        const bool wanted =
            (!device || range->device == device) && (of_graphs ? range->mapped : !range->owned);
        if (!wanted || !idle(*range, wait)) {
            ++it;
            continue;
        }
        some |= range->mapped;
        if (range->owned)
            unmap(*range), ++it;
        else
            release(*range), it = ranges.erase(it);
        if (wait && some) break;
    }
    return some;
}
// Unmapping may wait for the whole device (the simulated one's does), and so for host functions, which may
// wait for this thread or run on it.  So it is put off while there are any.
void settle() {
    if (!host_calls_are_left()) reclaim(nullptr, false, false);
}

CUresult map_or_reclaim(GraphRange& range) {
    CUresult result = map(range);
    for (bool wait : {false, true})
        while (result == CUDA_ERROR_OUT_OF_MEMORY && reclaim(range.device, true, wait)) result = map(range);
    return result;
}

CUresult map_all(const std::vector<std::shared_ptr<GraphRange>>& ranges) {
    std::vector<GraphRange*> fresh;
    CUresult error = CUDA_SUCCESS;
    for (const auto& range : ranges) {
        if (range->mapped) continue;
        error = map_or_reclaim(*range);
        if (error != CUDA_SUCCESS) break;
        fresh.push_back(range.get());
    }
    if (error != CUDA_SUCCESS)
        for (GraphRange* range : fresh) unmap(*range);
    for (GraphRange* range : fresh) {
        const Figures now = figures(*range->device);
        Highest& highest = graph_memory().highest[range->device];
        highest.used = std::max(highest.used, now.used);
        highest.reserved = std::max(highest.reserved, now.reserved);
    }
    return error;
}
}  // namespace

// --- fences ---

Fence::Fence(Device& device) : device_(device), resets_(device.resets) {
    Request request(device.connection, DriverCall::cuEventCreate);
    event_ = request.name_handle();
    request.put<unsigned>(CU_EVENT_DISABLE_TIMING);
    request.queue();
}
Fence::~Fence() {
    if (!process() || ended()) return;
    Request request(device_.connection, DriverCall::cuEventDestroy_v2);
    request.put(event_);
    request.queue();
}
void Fence::record(uint64_t stream) {
    if (ended()) return;
    stream_ = stream;
    gate_event(device_.connection, stream);
    Request request(device_.connection, DriverCall::cuEventRecord);
    request.put(event_), request.put(stream);
    request.queue();
}
void Fence::delay(uint64_t stream) const {
    if (ended() || stream == stream_) return;
    Request request(device_.connection, DriverCall::cuStreamWaitEvent);
    request.put(stream), request.put(event_), request.put<unsigned>(0);
    request.queue();
}
CUresult Fence::done(bool wait) const {
    if (ended()) return CUDA_SUCCESS;
    Request request(device_.connection, wait ? DriverCall::cuEventSynchronize : DriverCall::cuEventQuery);
    request.put(event_);
    return request.send();
}

// --- nodes ---

Arena::~Arena() {
    if (!process()) return;
    std::lock_guard lock(graph_memory().mutex);
    for (const auto& range : ranges) range->owned = false;
}

void move_memory(const std::shared_ptr<Arena>& inner, const std::shared_ptr<Arena>& outer) {
    std::lock_guard lock(graph_memory().mutex);
    root(outer.get())->freed.merge(inner->freed);
    inner->parent = outer;
}

std::vector<FreedSlot> freed_slots(const Arena& arena, const Device& device, uint64_t bytes) {
    std::lock_guard lock(graph_memory().mutex);
    std::vector<FreedSlot> found;
    for (const auto& range : arena.ranges) {
        if (range->device != &device) continue;
        for (const auto& [address, slot] : range->slots)  // much too large a one is left for others
            if (slot.last->freed_at && slot.bytes >= bytes && slot.bytes / 2 <= rounded(bytes, ALIGNMENT))
                found.push_back({address, slot.bytes, slot.last->freed_at});
    }
    return found;
}

CUresult allocate(const std::shared_ptr<Arena>& arena, Device& device, uint64_t bytes, CUdeviceptr slot,
                  std::shared_ptr<GraphAllocation>& allocation) {
    std::lock_guard lock(graph_memory().mutex);
    settle();
    if (bytes > MOST_BYTES) return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t need = rounded(bytes, ALIGNMENT);
    std::shared_ptr<GraphRange> range;
    CUdeviceptr address = slot;
    if (GraphRange* there = slot ? containing(slot) : nullptr)
        range = graph_memory().ranges.at(there->address);
    if (!range && need <= SMALL)
        for (const auto& each : arena->ranges)
            if (each->device == &device && !each->gone && each->bytes - each->given >= need)
                range = each, address = each->address + each->given;
    if (!range) {
        const uint64_t whole = rounded(need, UNIT);
        if (CUresult error = reserve_on_both_sides(device.connection, whole, 0, 0, address);
            error != CUDA_SUCCESS)
            return error;
        range = std::make_shared<GraphRange>(GraphRange{&device, address, whole});
        graph_memory().ranges[address] = range;
        arena->ranges.push_back(range);
        ++graph_memory_ranges;
    }
    allocation = std::make_shared<GraphAllocation>(GraphAllocation{range, address, bytes, arena});
    auto [place, fresh] = range->slots.try_emplace(address, GraphRange::Slot{need, allocation});
    if (fresh)
        range->given += need > SMALL ? range->bytes : need;
    else
        place->second.last = allocation;
    return CUDA_SUCCESS;
}

CUresult find_to_free(Arena& by, CUdeviceptr address, std::shared_ptr<GraphAllocation>& allocation) {
    std::lock_guard lock(graph_memory().mutex);
    GraphRange* range = containing(address);
    auto slot = range ? range->slots.find(address) : decltype(range->slots.end()){};
    if (!range || slot == range->slots.end()) return CUDA_ERROR_INVALID_VALUE;
    const std::shared_ptr<GraphAllocation> found = slot->second.last;
    const std::shared_ptr<Arena> arena = found->arena.lock();
    const bool own = arena && root(arena.get()) == root(&by);
    // It may be freed in its own graph or in others, once in each.
    if (found->freed_at || (own && found->freed_elsewhere) || root(&by)->freed.contains(found.get()) ||
        (!arena && !found->live))
        return CUDA_ERROR_INVALID_VALUE;
    allocation = found;
    return CUDA_SUCCESS;
}

void freed_by_node(Arena& by, const std::shared_ptr<GraphAllocation>& allocation, const Node* node) {
    std::lock_guard lock(graph_memory().mutex);
    const std::shared_ptr<Arena> arena = allocation->arena.lock();
    if (arena && root(arena.get()) == root(&by))
        allocation->freed_at = node;
    else
        allocation->freed_elsewhere = true;
    root(&by)->freed.insert(allocation.get());
}

// --- launches ---

CUresult MemoryLaunch::check() {
    std::unordered_map<GraphAllocation*, bool> live;
    for (const auto& [allocation, frees] : memory_->steps) {
        // A reset of the device invalidates a graph's own memory; another graph's goes with that graph.
        if (allocation->range->gone) return frees ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
        if (frees || !allocation->live) continue;
        if (!memory_->auto_free) return CUDA_ERROR_INVALID_VALUE;
        live[allocation.get()] = false;
    }
    for (const auto& [allocation, frees] : memory_->steps) {
        const bool now = live.try_emplace(allocation.get(), allocation->live).first->second;
        if (now != frees) return CUDA_ERROR_INVALID_VALUE;
        live[allocation.get()] = !frees;
    }
    for (const auto& [allocation, frees] : memory_->steps)
        if (const bool now = live[allocation.get()]; now != allocation->live)
            changes_.emplace_back(allocation, now);
    return CUDA_SUCCESS;
}

CUresult MemoryLaunch::begin(uint64_t stream) {
    std::lock_guard lock(graph_memory().mutex);
    settle();
    if (CUresult error = check(); error != CUDA_SUCCESS) return error;
    for (const auto& range : memory_->ranges) ++range->launches;
    if (CUresult error = map_all(memory_->ranges); error != CUDA_SUCCESS) {
        for (const auto& range : memory_->ranges) --range->launches;
        return error;
    }
    for (const auto& [allocation, live] : changes_) set_live(*allocation, live);
    std::unordered_set<const Fence*> waited;
    for (const auto& range : memory_->ranges) {
        for (const auto& fence : range->fences)
            if (waited.insert(fence.get()).second) fence->delay(stream);
        range->fences.clear();  // this launch's own fence comes after all of them
    }
    return CUDA_SUCCESS;
}

void MemoryLaunch::end(CUresult result, const std::shared_ptr<Fence>& fence) {
    std::lock_guard lock(graph_memory().mutex);
    if (result != CUDA_SUCCESS)
        for (const auto& [allocation, live] : changes_) set_live(*allocation, !live);
    for (const auto& range : memory_->ranges) {
        --range->launches;
        if (!range->gone) range->fences.push_back(fence);
    }
}

// --- other calls ---

bool is_graph_memory(CUdeviceptr address) {
    if (!has_graph_memory()) return false;
    std::lock_guard lock(graph_memory().mutex);
    return containing(address) != nullptr;
}

std::optional<uint64_t> graph_memory_attribute(CUpointer_attribute attribute, CUdeviceptr address) {
    if (!has_graph_memory()) return std::nullopt;
    std::lock_guard lock(graph_memory().mutex);
    const GraphAllocation* allocation = allocation_at(address);
    if (!allocation) return std::nullopt;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return CU_MEMORYTYPE_DEVICE;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            return address;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            return allocation->address;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            return allocation->bytes;
        default:
            return std::nullopt;
    }
}

std::optional<CUresult> graph_memory_cuMemGetAddressRange_v2(Connection&, CUdeviceptr* base, size_t* size,
                                                             CUdeviceptr address) {
    std::lock_guard lock(graph_memory().mutex);
    const GraphAllocation* allocation = allocation_at(address);
    if (!allocation) return std::nullopt;
    if (base) *base = allocation->address;
    if (size) *size = allocation->bytes;
    return CUDA_SUCCESS;
}

namespace {
// Does not wait, since the physical memory stays mapped.
std::optional<CUresult> free_now(CUdeviceptr address, Connection* connection, uint64_t stream) {
    std::lock_guard lock(graph_memory().mutex);
    GraphAllocation* allocation = allocation_at(address);
    if (!allocation) return std::nullopt;
    GraphRange& range = *allocation->range;
    if (allocation->address != address || !allocation->live || allocation->freed_at ||
        (connection && connection != &range.device->connection))
        return CUDA_ERROR_INVALID_VALUE;
    set_live(*allocation, false);
    if (connection) {
        auto fence = std::make_shared<Fence>(*range.device);
        fence->record(stream);
        range.fences.push_back(std::move(fence));
    }
    settle();
    return CUDA_SUCCESS;
}
}  // namespace

std::optional<CUresult> graph_memory_cuMemFree_v2(Connection&, CUdeviceptr address) {
    return free_now(address, nullptr, 0);
}
std::optional<CUresult> graph_memory_cuMemFreeAsync(Connection& connection, CUdeviceptr address,
                                                    CUstream stream) {
    return free_now(address, &connection, stream_name(connection, stream));
}

void settle_graph_memory() {
    if (!has_graph_memory() || !process()) return;
    std::lock_guard lock(graph_memory().mutex);
    settle();
}

CUresult end_graph_memory(Device& device, const std::function<CUresult()>& end) {
    std::lock_guard lock(graph_memory().mutex);
    const CUresult result = end();
    if (result != CUDA_SUCCESS) return result;
    ++device.resets;  // which invalidates the fences' events
    std::erase_if(graph_memory().ranges, [&](const auto& each) {
        GraphRange& range = *each.second;
        if (range.device != &device) return false;
        for (auto& [address, slot] : range.slots) set_live(*slot.last, false);
        range.gone = true, range.mapped = false;
        range.slots.clear(), range.fences.clear();
        free_here(range.address, range.bytes);
        --graph_memory_ranges;
        return true;
    });
    return result;
}

}  // namespace gpukernel::shim

using namespace gpukernel::shim;

// --- attributes ---

CUresult CUDAAPI cuDeviceGetGraphMemAttribute(CUdevice index, CUgraphMem_attribute attr, void* value) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    Device* const device = device_at(index);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    auto& figure = *static_cast<cuuint64_t*>(value);
    std::lock_guard lock(graph_memory().mutex);
    switch (attr) {
        case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
            figure = figures(*device).used;
            return CUDA_SUCCESS;
        case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
            figure = graph_memory().highest[device].used;
            return CUDA_SUCCESS;
        case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
            settle();
            figure = figures(*device).reserved;
            return CUDA_SUCCESS;
        case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
            figure = graph_memory().highest[device].reserved;
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

// A high-water mark can only be reset, to the current value.
CUresult CUDAAPI cuDeviceSetGraphMemAttribute(CUdevice index, CUgraphMem_attribute attr, void* value) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    Device* const device = device_at(index);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    const bool used = attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH;
    if ((!used && attr != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) || !value || *static_cast<cuuint64_t*>(value))
        return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(graph_memory().mutex);
    const Figures now = figures(*device);
    Highest& highest = graph_memory().highest[device];
    (used ? highest.used : highest.reserved) = used ? now.used : now.reserved;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice index) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    Device* const device = device_at(index);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (calling_host) return CUDA_ERROR_NOT_PERMITTED;
    std::lock_guard lock(graph_memory().mutex);
    reclaim(device, true, false);
    return CUDA_SUCCESS;
}
