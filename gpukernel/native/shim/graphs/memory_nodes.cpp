// Allocation and free nodes: their parameters, their order, and the calls about them.
#include <algorithm>
#include <deque>
#include <unordered_map>

#include "shim/graphs/graphs.h"

namespace gpukernel::shim {

namespace {
// Finds the slot that wastes least among those whose freeing node precedes a node that follows `before`; 0:
// none.  The search begins with the nearest nodes, since what was just freed is likely to fit.
CUdeviceptr slot_freed_before(const std::vector<FreedSlot>& slots, const std::vector<Edge>& before) {
    if (slots.empty()) return 0;
    std::unordered_map<const Node*, const FreedSlot*> wanted;
    uint64_t least = UINT64_MAX;
    for (const FreedSlot& slot : slots) {
        wanted[slot.freed_at] = &slot;
        least = std::min(least, slot.bytes);
    }
    std::deque<const Node*> left;
    std::unordered_set<const Node*> seen;
    auto go_on = [&](const std::vector<Edge>& edges) {
        for (const Edge& edge : edges)
            if (seen.insert(edge.other).second) left.push_back(edge.other);
    };
    const FreedSlot* best = nullptr;
    for (go_on(before); !left.empty() && !wanted.empty(); left.pop_front()) {
        if (auto found = wanted.find(left.front()); found != wanted.end()) {
            if (!best || found->second->bytes < best->bytes) best = found->second;
            if (best->bytes == least) break;
            wanted.erase(found);
        }
        go_on(left.front()->before);
    }
    return best ? best->address : 0;
}

// A node's place in a topological order, and in a chain of nodes, each of which has one predecessor and one
// successor.
struct Place {
    size_t order, in_row;
    const Node* head;  // of the chain
};
using Places = std::unordered_map<const Node*, Place>;

Places places_of(const std::vector<Step>& steps) {
    Places places;
    for (size_t i = 0; i < steps.size(); ++i)  // a graph inside stands where its first node does
        for (const Node* node = steps[i].node; node; node = node->graph->owner) {
            auto [place, fresh] = places.try_emplace(node, Place{i, 0, node});
            const Node* before = fresh && node->before.size() == 1 ? node->before.front().other : nullptr;
            if (!before || before->after.size() != 1) continue;
            if (auto it = places.find(before); it != places.end())
                place->second = {i, it->second.in_row + 1, it->second.head};
        }
    return places;
}

// Returns whether `first` precedes `then` by the edges, of their own graph or of those around it.
bool ordered(const Node* first, const Node* then, const Places& places) {
    for (; first; first = first->graph->owner)
        for (const Node* last = then; last; last = last->graph->owner) {
            if (last->graph != first->graph || last == first) continue;
            const Place& wanted = places.at(first);
            std::vector<const Node*> left{last};
            std::unordered_set<const Node*> seen;
            while (!left.empty()) {
                const Node* at = left.back();
                left.pop_back();
                auto place = places.find(at);  // none: an empty child graph
                if (place != places.end()) {
                    if (place->second.order < wanted.order)
                        continue;  // no path from `first` leads through it
                    if (place->second.head == wanted.head && place->second.in_row >= wanted.in_row)
                        return true;
                    at = place->second.head;
                }
                for (const Edge& edge : at->before)
                    if (seen.insert(edge.other).second) left.push_back(edge.other);
            }
            return false;
        }
    return false;
}
}  // namespace

CUresult check(const CUDA_MEM_ALLOC_NODE_PARAMS& params) {
    const CUmemPoolProps& pool = params.poolProps;
    if (!params.bytesize || pool.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        pool.handleTypes != CU_MEM_HANDLE_TYPE_NONE || pool.location.type == CU_MEM_LOCATION_TYPE_INVALID ||
        (params.accessDescCount && !params.accessDescs) || params.accessDescCount > process()->devices.size())
        return CUDA_ERROR_INVALID_VALUE;
    if (pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return gpukernel::unsupported("memory of a graph that is not on a device");
    if (!device_at(pool.location.id)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < params.accessDescCount; ++i) {
        const CUmemAccessDesc& access = params.accessDescs[i];
        if (access.location.type != CU_MEM_LOCATION_TYPE_DEVICE || !device_at(access.location.id) ||
            access.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
        // Devices of a lease cannot access each other's memory.
        if (access.location.id != pool.location.id) return CUDA_ERROR_INVALID_DEVICE;
    }
    return CUDA_SUCCESS;
}

CUresult make_work(Graph& graph, const std::vector<Edge>& before, CUDA_MEM_ALLOC_NODE_PARAMS& params,
                   SharedWork& work) {
    if (graph.owner) return CUDA_ERROR_NOT_SUPPORTED;  // a child graph gets no more nodes
    const std::shared_ptr<Arena> memory = graph.memory ? graph.memory : std::make_shared<Arena>();
    Device& device = *device_at(params.poolProps.location.id);
    const CUdeviceptr slot = slot_freed_before(freed_slots(*memory, device, params.bytesize), before);
    AllocWork alloc{nullptr, params.poolProps, {}};
    if (params.accessDescCount)
        alloc.access.assign(params.accessDescs, params.accessDescs + params.accessDescCount);
    const CUresult result = allocate(memory, device, params.bytesize, slot, alloc.allocation);
    if (result != CUDA_SUCCESS) return result;
    graph.memory = memory;
    params.dptr = alloc.allocation->address;
    work = std::make_shared<Work>(std::move(alloc));
    return CUDA_SUCCESS;
}

CUresult make_work(Graph& graph, CUdeviceptr address, SharedWork& work) {
    FreeWork free;
    if (graph.owner) return CUDA_ERROR_NOT_SUPPORTED;  // a child graph gets no more nodes
    const std::shared_ptr<Arena> memory = graph.memory ? graph.memory : std::make_shared<Arena>();
    if (CUresult error = find_to_free(*memory, address, free.allocation); error != CUDA_SUCCESS) return error;
    graph.memory = memory;
    work = std::make_shared<Work>(std::move(free));
    return CUDA_SUCCESS;
}

void note_memory(Node& node) {
    const auto* free = std::get_if<FreeWork>(node.work.get());
    const auto& allocation = free ? free->allocation : std::get<AllocWork>(*node.work).allocation;
    node.context = allocation->range->device->primary.get();  // that of the memory, whatever is current
    if (free) freed_by_node(*node.graph->memory, allocation, &node);
}

CUresult add_memory_node(CUgraphNode* hNode, CUgraph hGraph, const CUgraphNode* dependencies,
                         const CUgraphEdgeData* data, size_t count, CUgraphNodeParams& params) {
    GPUKERNEL_DEFAULT_DEVICE(connection);
    const bool allocates = params.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc{};
    if (allocates) {
        const auto& p = params.alloc;
        alloc = {p.poolProps, p.accessDescs, p.accessDescCount, p.bytesize, 0};
        if (CUresult error = check(alloc); error != CUDA_SUCCESS) return error;
    }
    LockedGraphs graphs;
    Graph* graph = graphs->find(hGraph);
    std::vector<Edge> edges;
    SharedWork work;
    if (!graph || !hNode) return CUDA_ERROR_INVALID_VALUE;
    CUresult error = edges_of(graphs, *graph, dependencies, data, count, edges);
    if (error == CUDA_SUCCESS)
        error = allocates ? make_work(*graph, edges, alloc, work) : make_work(*graph, params.free.dptr, work);
    if (error != CUDA_SUCCESS) return error;
    Node* const node = graphs->add(*graph, std::move(work), std::move(edges));
    note_memory(*node);
    if (allocates) params.alloc.dptr = alloc.dptr;
    *hNode = handle(node);
    return CUDA_SUCCESS;
}

CUresult plan_memory(const std::vector<Step>& steps, bool auto_free, std::shared_ptr<LaunchMemory>& memory,
                     const Node*& wrong) {
    auto plan = std::make_shared<LaunchMemory>();
    std::unordered_map<const GraphAllocation*, const Node*> made;
    plan->auto_free = auto_free;
    const Places places = places_of(steps);
    for (const Step& step : steps) {
        const auto* alloc = std::get_if<AllocWork>(step.work.get());
        const auto* free = std::get_if<FreeWork>(step.work.get());
        if (!alloc && !free) continue;
        const std::shared_ptr<GraphAllocation>& allocation = alloc ? alloc->allocation : free->allocation;
        if (alloc) made[allocation.get()] = step.node;
        plan->steps.push_back({allocation, free != nullptr});
        const std::shared_ptr<GraphRange>& range = allocation->range;
        if (std::find(plan->ranges.begin(), plan->ranges.end(), range) == plan->ranges.end())
            plan->ranges.push_back(range);
    }
    for (const Step& step : steps)
        if (const auto* free = std::get_if<FreeWork>(step.work.get())) {
            auto it = made.find(free->allocation.get());
            if (it == made.end() || ordered(it->second, step.node, places)) continue;
            wrong = step.node;
            return CUDA_ERROR_INVALID_VALUE;
        }
    if (plan->steps.empty()) return CUDA_SUCCESS;
    memory = std::move(plan);
    return CUDA_SUCCESS;
}

}  // namespace gpukernel::shim

using namespace gpukernel::shim;

namespace {
template <class Kind>
CUresult look(CUgraphNode hNode, SharedWork& work) {
    LockedGraphs graphs;
    Node* node = graphs->find(hNode);
    if (!node || !std::holds_alternative<Kind>(*node->work)) return CUDA_ERROR_INVALID_VALUE;
    work = node->work;
    return CUDA_SUCCESS;
}
}  // namespace

CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                        const CUgraphNode* dependencies, size_t numDependencies,
                                        CUDA_MEM_ALLOC_NODE_PARAMS* nodeParams) {
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    params.alloc = {nodeParams->poolProps, nodeParams->accessDescs, nodeParams->accessDescCount,
                    nodeParams->bytesize, 0};
    const CUresult result =
        add_memory_node(phGraphNode, hGraph, dependencies, nullptr, numDependencies, params);
    if (result == CUDA_SUCCESS) nodeParams->dptr = params.alloc.dptr;
    return result;
}
// The returned access descriptions are valid until the node is destroyed.
CUresult CUDAAPI cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS* params_out) {
    SharedWork work;
    if (CUresult error = look<AllocWork>(hNode, work); error != CUDA_SUCCESS || !params_out)
        return CUDA_ERROR_INVALID_VALUE;
    const auto& alloc = std::get<AllocWork>(*work);
    *params_out = {alloc.pool, alloc.access.empty() ? nullptr : alloc.access.data(), alloc.access.size(),
                   alloc.allocation->bytes, alloc.allocation->address};
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphAddMemFreeNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                       const CUgraphNode* dependencies, size_t numDependencies,
                                       CUdeviceptr dptr) {
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_MEM_FREE;
    params.free.dptr = dptr;
    return add_memory_node(phGraphNode, hGraph, dependencies, nullptr, numDependencies, params);
}
CUresult CUDAAPI cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr* dptr_out) {
    SharedWork work;
    if (CUresult error = look<FreeWork>(hNode, work); error != CUDA_SUCCESS || !dptr_out)
        return CUDA_ERROR_INVALID_VALUE;
    *dptr_out = std::get<FreeWork>(*work).allocation->address;
    return CUDA_SUCCESS;
}
