// Executable graphs: instantiation, updates, launches.
#include <algorithm>

#include "shim/graphs/capture.h"
#include "shim/graphs/graphs.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

namespace {
// Of the nodes in a conditional node's body.
bool may_be_inside(const Node& node) {
    const CUgraphNodeType type = node.type();
    return type <= CU_GRAPH_NODE_TYPE_MEMSET || type == CU_GRAPH_NODE_TYPE_GRAPH ||
           type == CU_GRAPH_NODE_TYPE_EMPTY || type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
}

CUresult flatten(const Graph& graph, bool enabled, bool inside, std::vector<Step>& steps, Context*& context) {
    std::vector<Node*> order;
    if (!in_order(graph, order)) return CUDA_ERROR_INVALID_VALUE;
    for (Node* node : order) {
        if (node->context && !std::holds_alternative<EmptyWork>(*node->work)) {
            if (context && context != node->context)
                return gpukernel::unsupported("a graph over several devices");
            context = node->context;
        }
        if (inside && !may_be_inside(*node))
            return gpukernel::unsupported("such a node in the body of a conditional node");
        if (node->child) {
            if (CUresult error = flatten(*node->child, enabled && node->enabled, inside, steps, context);
                error != CUDA_SUCCESS)
                return error;
        } else {
            Step step{node->work, node, enabled && node->enabled};
            for (const auto& body : node->bodies)
                if (CUresult error = flatten(*body, true, true, step.bodies.emplace_back(), context);
                    error != CUDA_SUCCESS)
                    return error;
            steps.push_back(std::move(step));
        }
    }
    return CUDA_SUCCESS;
}

void collect_conditions(const std::vector<Step>& steps, std::vector<std::shared_ptr<Condition>>& found) {
    for (const Step& step : steps) {
        if (const auto* work = std::get_if<ConditionalWork>(step.work.get()))
            found.push_back(work->condition);
        for (const auto& body : step.bodies) collect_conditions(body, found);
    }
}

// `wrong` is the node at fault, where there is one.
CUresult prepare(Executable& executable, const Node*& wrong) {
    auto steps = std::make_shared<std::vector<Step>>();
    CUresult error = flatten(*executable.graph, true, false, *steps, executable.context);
    // Memory is planned once: no update changes it.
    if (error == CUDA_SUCCESS && executable.graph->memory && !executable.memory)
        error = plan_memory(*steps, executable.flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
                            executable.memory, wrong);
    if (error != CUDA_SUCCESS) return error;
    executable.conditions.clear();
    collect_conditions(*steps, executable.conditions);
    executable.steps = std::move(steps);
    return error;
}
CUresult prepare(Executable& executable) {
    const Node* wrong = nullptr;
    return prepare(executable, wrong);
}

// Flattens the graph again after a change; a launch under way keeps the steps that it began with.
void renew(std::vector<Step>& steps, const Node* node) {
    for (Step& step : steps) {
        if (step.node == node) step.work = node->work, step.enabled = node->enabled;
        for (auto& body : step.bodies) renew(body, node);
    }
}
void refresh(Executable& executable, const Node* node) {
    auto steps = std::make_shared<std::vector<Step>>(*executable.steps);
    renew(*steps, node);
    executable.steps = std::move(steps);
}

Node* node_of(LockedGraphs& graphs, Executable* executable, CUgraphNode hNode) {
    if (!executable || !graphs->nodes.contains(hNode)) return nullptr;
    auto it = executable->nodes.find(reinterpret_cast<const Node*>(hNode));
    return it == executable->nodes.end() ? nullptr : it->second;
}

bool same_memory(const Work& a, const Work& b) {
    const auto *x = std::get_if<CopyWork>(&a), *y = std::get_if<CopyWork>(&b);
    return !x || !y ||
           (x->resolved.srcMemoryType == y->resolved.srcMemoryType &&
            x->resolved.dstMemoryType == y->resolved.dstMemoryType);
}

const GraphAllocation* memory_of(const Work& work) {
    if (const auto* alloc = std::get_if<AllocWork>(&work)) return alloc->allocation.get();
    if (const auto* free = std::get_if<FreeWork>(&work)) return free->allocation.get();
    return nullptr;
}

struct Difference {
    CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    const Node *node = nullptr, *from = nullptr;
};

// Pairs the nodes of two graphs of the same shape, or finds where they differ.
Difference pair(const Graph& mine, const Graph& theirs, std::vector<std::pair<Node*, const Node*>>& pairs) {
    std::vector<Node*> a, b;
    if (!in_order(mine, a) || !in_order(theirs, b) || a.size() != b.size())
        return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED};
    std::unordered_map<const Node*, size_t> place_a, place_b;
    for (size_t i = 0; i < a.size(); ++i) place_a[a[i]] = place_b[b[i]] = i;
    for (size_t i = 0; i < a.size(); ++i) {
        std::vector<size_t> before_a, before_b;
        for (const Edge& edge : a[i]->before) before_a.push_back(place_a[edge.other]);
        for (const Edge& edge : b[i]->before) before_b.push_back(place_b[edge.other]);
        std::sort(before_a.begin(), before_a.end()), std::sort(before_b.begin(), before_b.end());
        if (before_a != before_b) {
            const Node* from = nullptr;
            for (const Edge& edge : b[i]->before)
                if (!std::binary_search(before_a.begin(), before_a.end(), place_b[edge.other]))
                    from = edge.other;
            return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, b[i], from};
        }
        if (a[i]->type() != b[i]->type()) return {CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, b[i]};
        if (memory_of(*a[i]->work) != memory_of(*b[i]->work))
            return {CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED, b[i]};
        if (a[i]->context != b[i]->context || !same_memory(*a[i]->work, *b[i]->work))
            return {CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, b[i]};
        const auto *mine_decides = std::get_if<ConditionalWork>(a[i]->work.get()),
                   *theirs_decides = std::get_if<ConditionalWork>(b[i]->work.get());
        if (mine_decides && mine_decides->condition != theirs_decides->condition)
            return {CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED, b[i]};
        pairs.emplace_back(a[i], b[i]);
        for (size_t n = 0; n < a[i]->bodies.size(); ++n)
            if (Difference inside = pair(*a[i]->bodies[n], *b[i]->bodies[n], pairs); inside.result)
                return inside;
        if (a[i]->child)
            if (Difference inside = pair(*a[i]->child, *b[i]->child, pairs); inside.result) return inside;
    }
    return {};
}

// --- the launch ---

CUresult fill(const CUDA_MEMSET_NODE_PARAMS& p, CUstream stream) {
    if (p.height == 1) switch (p.elementSize) {
            case 1:
                return cuMemsetD8Async(p.dst, static_cast<unsigned char>(p.value), p.width, stream);
            case 2:
                return cuMemsetD16Async(p.dst, static_cast<unsigned short>(p.value), p.width, stream);
            default:
                return cuMemsetD32Async(p.dst, p.value, p.width, stream);
        }
    switch (p.elementSize) {
        case 1:
            return cuMemsetD2D8Async(p.dst, p.pitch, static_cast<unsigned char>(p.value), p.width, p.height,
                                     stream);
        case 2:
            return cuMemsetD2D16Async(p.dst, p.pitch, static_cast<unsigned short>(p.value), p.width, p.height,
                                      stream);
        default:
            return cuMemsetD2D32Async(p.dst, p.pitch, p.value, p.width, p.height, stream);
    }
}

template <class... Functions>
struct Visitor : Functions... {
    using Functions::operator()...;
};
template <class... Functions>  // which C++20 deduces by itself, but Clang before 17 does not
Visitor(Functions...) -> Visitor<Functions...>;

CUresult run(Connection& connection, const Work& work, CUstream stream) {
    return std::visit(
        Visitor{[&](const KernelWork& kernel) { return queue(connection, kernel.call, stream); },
                [&](const CopyWork& copy) { return cuMemcpy3DAsync(&copy.resolved, stream); },
                [&](const FillWork& each) { return fill(each.params, stream); },
                [&](const HostWork& host) { return cuLaunchHostFunc(stream, host.function, host.data); },
                [&](const MemoryWork& memory) { return queue(connection, memory.operations, stream); },
                [&](const LibraryWork& library) { return queue(connection, library.call, stream); },
                [&](const WaitWork& wait) { return cuStreamWaitEvent(stream, wait.event, 0); },
                [&](const RecordWork& record) { return cuEventRecord(record.event, stream); },
                // Memory is handled before the first call and after the last.
                [&](const auto&) { return CUDA_SUCCESS; }},
        work);
}

CUresult run(Connection& connection, const std::vector<Step>& steps, CUstream stream) {
    CUresult error = CUDA_SUCCESS;
    for (const Step& step : steps) {
        if (error != CUDA_SUCCESS || !step.enabled) continue;
        if (const auto* conditional = std::get_if<ConditionalWork>(step.work.get()))
            error = decide(*conditional, step.bodies.size(), stream,
                           [&](size_t taken) { return run(connection, step.bodies[taken], stream); });
        else
            error = run(connection, *step.work, stream);
    }
    return error;
}

CUresult instantiate(CUgraphExec* out, CUgraph hGraph, cuuint64_t flags, CUgraphInstantiateResult& why,
                     CUgraphNode& error_node) {
    constexpr cuuint64_t known =
        CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
        CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    why = CUDA_GRAPH_INSTANTIATE_ERROR;
    error_node = nullptr;
    if (!out || (flags & ~known)) return CUDA_ERROR_INVALID_VALUE;
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
        return gpukernel::unsupported("a graph launched by the device");
    LockedGraphs graphs;
    Graph* graph = graphs->find(hGraph);
    if (!graph || graph->captures || graph->moved) return CUDA_ERROR_INVALID_VALUE;
    if (graph->memory && graph->memory->instantiated) return CUDA_ERROR_NOT_SUPPORTED;
    const bool conditional = decides(*graph);
    if (conditional && !graph->instance.expired()) return CUDA_ERROR_NOT_SUPPORTED;
    for (const auto& [handle, condition] : graph->conditions)
        if (!condition->used) {
            why = CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
            return CUDA_ERROR_INVALID_VALUE;
        }
    auto executable = std::make_unique<Executable>();
    executable->flags = flags;
    executable->graph = graphs->clone(*graph, &executable->nodes);
    const Node* wrong = nullptr;
    if (CUresult error = prepare(*executable, wrong); error != CUDA_SUCCESS) {
        if (error == CUDA_ERROR_INVALID_VALUE) why = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
        if (wrong) error_node = handle(wrong->origin);
        graphs->end(std::move(executable->graph));
        return error;
    }
    if (graph->memory) graph->memory->instantiated = true;
    if (conditional) graph->instance = executable->order;
    why = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    graphs->executables.insert(executable.get());
    *out = reinterpret_cast<CUgraphExec>(executable.release());
    return CUDA_SUCCESS;
}
}  // namespace

CUresult exchange(CUgraphExec hGraphExec, CUgraphNode hNode, SharedWork work) {
    LockedGraphs graphs;
    Executable* executable = graphs->find(hGraphExec);
    Node* node = node_of(graphs, executable, hNode);
    if (!node || node->work->index() != work->index() || !same_memory(*node->work, *work))
        return CUDA_ERROR_INVALID_VALUE;
    if (const auto* before = std::get_if<KernelWork>(node->work.get())) {
        const auto& fresh = std::get<KernelWork>(*work);
        KernelCall call = fresh.call;  // attributes stay
        call.mode = before->call.mode;
        work = kernel_work(std::move(call), fresh.named_kernel, before->attributes);
    }
    node->work = std::move(work);
    refresh(*executable, node);
    return CUDA_SUCCESS;
}

CUresult exchange_child(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraph child) {
    LockedGraphs graphs;
    Executable* executable = graphs->find(hGraphExec);
    Node* node = node_of(graphs, executable, hNode);
    Graph* graph = graphs->find(child);
    std::vector<std::pair<Node*, const Node*>> pairs;
    if (!node || !node->child || !graph || pair(*node->child, *graph, pairs).result)
        return CUDA_ERROR_INVALID_VALUE;
    for (auto [mine, theirs] : pairs) mine->work = theirs->work;
    return prepare(*executable);
}

}  // namespace gpukernel::shim

using namespace gpukernel::shim;

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph,
                                             unsigned long long flags) {
    CUgraphInstantiateResult why;
    CUgraphNode node;
    return instantiate(phGraphExec, hGraph, flags, why, node);
}
CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec* phGraphExec, CUgraph hGraph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
    if (!instantiateParams) return CUDA_ERROR_INVALID_VALUE;
    return instantiate(phGraphExec, hGraph, instantiateParams->flags, instantiateParams->result_out,
                       instantiateParams->hErrNode_out);
}
#undef cuGraphInstantiate
extern "C" CUresult cuGraphInstantiate(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode,
                                       char* logBuffer, size_t bufferSize) {
    CUgraphInstantiateResult why;
    CUgraphNode node;
    if (logBuffer && bufferSize) *logBuffer = 0;
    const CUresult result = instantiate(phGraphExec, hGraph, 0, why, node);
    if (phErrorNode) *phErrorNode = node;
    return result;
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec hGraphExec) {
    std::unique_ptr<Executable> executable;
    {
        LockedGraphs graphs;
        executable.reset(graphs->find(hGraphExec));
        if (!executable) return CUDA_ERROR_INVALID_VALUE;
        graphs->executables.erase(executable.get());
        if (executable->graph->memory) executable->graph->memory->instantiated = false;
        graphs->end(std::move(executable->graph));
    }
    settle_graph_memory();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t* flags) {
    LockedGraphs graphs;
    Executable* executable = graphs->find(hGraphExec);
    if (!executable || !flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = executable->flags & ~cuuint64_t{CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD};
    return CUDA_SUCCESS;
}

namespace {
bool may_be_disabled(const Node* node) { return node && node->type() <= CU_GRAPH_NODE_TYPE_MEMSET; }
}  // namespace

CUresult CUDAAPI cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled) {
    LockedGraphs graphs;
    Executable* executable = graphs->find(hGraphExec);
    Node* node = node_of(graphs, executable, hNode);
    if (!may_be_disabled(node)) return CUDA_ERROR_INVALID_VALUE;
    node->enabled = isEnabled != 0;
    refresh(*executable, node);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int* isEnabled) {
    LockedGraphs graphs;
    Node* node = node_of(graphs, graphs->find(hGraphExec), hNode);
    if (!may_be_disabled(node) || !isEnabled) return CUDA_ERROR_INVALID_VALUE;
    *isEnabled = node->enabled;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                                      CUgraphExecUpdateResultInfo* resultInfo) {
    LockedGraphs graphs;
    Executable* executable = graphs->find(hGraphExec);
    Graph* graph = graphs->find(hGraph);
    if (!executable || !graph || graph->captures || graph->moved || !resultInfo)
        return CUDA_ERROR_INVALID_VALUE;
    std::vector<std::pair<Node*, const Node*>> pairs;
    const Difference difference = pair(*executable->graph, *graph, pairs);
    *resultInfo = {difference.result, handle(difference.node), handle(difference.from)};
    if (difference.result) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    for (auto [mine, theirs] : pairs) {
        mine->work = theirs->work;
        executable->nodes[theirs] = mine;
    }
    return prepare(*executable);
}
#undef cuGraphExecUpdate
extern "C" CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode* hErrorNode_out,
                                      CUgraphExecUpdateResult* updateResult_out) {
    CUgraphExecUpdateResultInfo info{CU_GRAPH_EXEC_UPDATE_ERROR, nullptr, nullptr};
    CUresult result = cuGraphExecUpdate_v2(hGraphExec, hGraph, &info);
    if (hErrorNode_out) *hErrorNode_out = info.errorNode;
    if (updateResult_out) *updateResult_out = info.result;
    return result;
}

// Nothing is uploaded, since graphs exist in this process only.
CUresult CUDAAPI cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) {
    LockedGraphs graphs;
    return graphs->find(hGraphExec) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
    GPUKERNEL_CURRENT(caller);
    std::shared_ptr<const std::vector<Step>> steps;
    std::shared_ptr<LaunchMemory> memory;
    std::shared_ptr<LaunchOrder> order;
    std::vector<std::shared_ptr<Condition>> conditions;
    Context* context;
    {
        LockedGraphs graphs;
        Executable* executable = graphs->find(hGraphExec);
        if (!executable) return CUDA_ERROR_INVALID_VALUE;
        if (capturing())
            if (auto captured = captured_graph(*caller, *executable, graphs, hStream)) return *captured;
        steps = executable->steps;
        memory = executable->memory;
        order = executable->order;
        conditions = executable->conditions;
        context = executable->context ? executable->context : context_stack().back();
    }
    Connection& connection = context->device->connection;
    context_stack().push_back(context);
    CUresult error = connection.alive() ? CUDA_SUCCESS : GONE;
    std::lock_guard turn(order->mutex);
    const uint64_t stream = stream_name(connection, hStream);
    if (!order->fence || !order->fence->is_of(*context->device))
        order->fence = std::make_shared<Fence>(*context->device);
    order->fence->delay(stream);
    std::optional<MemoryLaunch> with_memory;
    if (memory && error == CUDA_SUCCESS) {
        error = with_memory.emplace(memory).begin(stream);
        if (error != CUDA_SUCCESS) with_memory.reset();
    }
    if (error == CUDA_SUCCESS) error = assign_conditions(conditions, hStream);
    if (error == CUDA_SUCCESS) error = run(connection, *steps, hStream);
    order->fence->record(stream);
    if (with_memory) with_memory->end(error, order->fence);
    context_stack().pop_back();
    return error;
}
