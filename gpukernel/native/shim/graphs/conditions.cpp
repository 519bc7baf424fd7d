// Conditional nodes of graphs: handles, nodes, and which body a launch takes.
//
// A handle is the address of a word in device memory.  Kernels set it by cudaGraphSetConditional, a function
// of the device's runtime that the simulated GPU has; how NVIDIA's driver finds the word of a handle is not
// documented, so on its devices there are no handles.
#include <algorithm>

#include "shim/graphs/graphs.h"
#include "shim/memory/memory.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

namespace {
constexpr uint64_t WORD = 4, BLOCK = 512;  // bytes; what an allocation takes at least

// Words of one connection.  They stay allocated, since another handle takes them.
struct Words {
    uint64_t generation = 0;  // a reset of the context ends all of them
    std::vector<CUdeviceptr> free;
};
std::mutex words_mutex;
std::map<Connection*, Words> words;

CUresult take_word(Connection& connection, Condition& condition) {
    std::lock_guard lock(words_mutex);
    Words& its = words[&connection];
    if (its.free.empty()) {
        Request request(connection, wire::DriverCall::cuMemAlloc_v2);
        request.put<uint64_t>(BLOCK);
        if (CUresult error = request.send(); error != CUDA_SUCCESS) return error;
        const auto block = request.get<CUdeviceptr>();
        for (uint64_t at = 0; at < BLOCK; at += WORD) its.free.push_back(block + at);
    }
    condition.address = its.free.back();
    condition.generation = its.generation;
    its.free.pop_back();
    return CUDA_SUCCESS;
}

Condition* find(Graph& graph, CUgraphConditionalHandle handle, std::shared_ptr<Condition>& found) {
    for (Graph* at = &graph; at; at = at->owner ? at->owner->graph : nullptr)
        if (auto it = at->conditions.find(handle); it != at->conditions.end()) found = it->second;
    return found.get();
}

bool right_size(const CUDA_CONDITIONAL_NODE_PARAMS& params) {
    switch (params.type) {
        case CU_GRAPH_COND_TYPE_IF:
            return params.size == 1 || params.size == 2;
        case CU_GRAPH_COND_TYPE_WHILE:
            return params.size == 1;
        case CU_GRAPH_COND_TYPE_SWITCH:
            return params.size != 0;
        default:
            return false;
    }
}
}  // namespace

Condition::~Condition() {
    std::lock_guard lock(words_mutex);
    if (!address) return;
    Words& its = words[&context->device->connection];
    if (its.generation == generation) its.free.push_back(address);
}

void forget_conditions(Connection& connection) {
    std::lock_guard lock(words_mutex);
    Words& its = words[&connection];
    ++its.generation;
    its.free.clear();
}

bool decides(const Graph& graph) {
    return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const auto& node) {
        return !node->bodies.empty() || (node->child && decides(*node->child));
    });
}

CUresult add_conditional(CUgraphNode* node, CUgraph hGraph, const CUgraphNode* dependencies,
                         const CUgraphEdgeData* data, size_t count, CUDA_CONDITIONAL_NODE_PARAMS& params) {
    LockedGraphs graphs;
    Graph* graph = graphs->find(hGraph);
    std::shared_ptr<Condition> condition;
    if (!graph || !node || !right_size(params) || !find(*graph, params.handle, condition) ||
        condition->used || (params.ctx && params.ctx != condition->context))
        return CUDA_ERROR_INVALID_VALUE;
    std::vector<Edge> edges;
    if (CUresult error = edges_of(graphs, *graph, dependencies, data, count, edges); error != CUDA_SUCCESS)
        return error;
    Node* made = graphs->add(*graph, std::make_shared<Work>(ConditionalWork{condition, params.type}),
                             std::move(edges));
    made->context = condition->context;
    for (unsigned i = 0; i < params.size; ++i) {
        made->bodies.push_back(graphs->make());
        made->bodies.back()->owner = made;
        made->body_handles.push_back(handle(made->bodies.back().get()));
    }
    condition->used = true;
    params.phGraph_out = made->body_handles.data();
    *node = handle(made);
    return CUDA_SUCCESS;
}

CUresult assign_conditions(const std::vector<std::shared_ptr<Condition>>& conditions, CUstream stream) {
    for (const auto& each : conditions)
        if (each->assigned)
            if (CUresult error = cuMemsetD32Async(each->address, each->value, 1, stream);
                error != CUDA_SUCCESS)
                return error;
    return CUDA_SUCCESS;
}

CUresult decide(const ConditionalWork& work, size_t bodies, CUstream stream,
                const std::function<CUresult(size_t)>& run) {
    for (;;) {
        unsigned value = 0;  // read when what comes before is done
        CUresult error = cuMemcpyDtoHAsync(&value, work.condition->address, sizeof value, stream);
        if (error != CUDA_SUCCESS) return error;
        const size_t taken = work.type == CU_GRAPH_COND_TYPE_SWITCH ? value : value ? 0 : 1;
        if (taken >= bodies) return CUDA_SUCCESS;
        error = run(taken);
        if (error != CUDA_SUCCESS || work.type != CU_GRAPH_COND_TYPE_WHILE) return error;
    }
}

}  // namespace gpukernel::shim

using namespace gpukernel::shim;

CUresult CUDAAPI cuGraphConditionalHandleCreate(CUgraphConditionalHandle* pHandle_out, CUgraph hGraph,
                                                CUcontext ctx, unsigned int defaultLaunchValue,
                                                unsigned int flags) {
    GPUKERNEL_CURRENT(current);
    Context* const context = ctx ? context_of(ctx) : context_stack().back();
    if (!pHandle_out || (flags & ~CU_GRAPH_COND_ASSIGN_DEFAULT)) return CUDA_ERROR_INVALID_VALUE;
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    Connection& connection = context->device->connection;
    if (!worker_shares(*context->device))
        return gpukernel::unsupported("a conditional node, by a worker of an older version");
    {
        LockedGraphs graphs;
        if (!graphs->find(hGraph)) return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult error;
    {
        Request request(connection, gpukernel::wire::PlainConditionsRequest{});
        error = request.send();
    }
    if (error == CUDA_ERROR_NOT_SUPPORTED)
        return gpukernel::unsupported("a conditional node on a device that is not simulated");
    if (error != CUDA_SUCCESS) return error;
    auto condition = std::make_shared<Condition>();
    condition->context = context;
    condition->assigned = flags & CU_GRAPH_COND_ASSIGN_DEFAULT;
    condition->value = condition->assigned ? defaultLaunchValue : 0;  // else it is nothing's, as on an H100
    error = take_word(connection, *condition);
    if (error != CUDA_SUCCESS) return error;
    {
        Request request(connection, gpukernel::wire::DriverCall::cuMemsetD32_v2);
        request.put<CUdeviceptr>(condition->address), request.put<unsigned>(condition->value);
        request.put<size_t>(1);
        if (error = request.queue(); error != CUDA_SUCCESS) return error;
    }
    LockedGraphs graphs;
    Graph* graph = graphs->find(hGraph);
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    *pHandle_out = condition->address;
    graph->conditions[condition->address] = std::move(condition);
    return CUDA_SUCCESS;
}
