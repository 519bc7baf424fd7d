// The parameters of nodes, in graphs and in executable graphs.
#include <cstring>

#include "shim/graphs/graphs.h"
#include "shim/memory/memory.h"

namespace gpukernel::shim {

SharedWork kernel_work(KernelCall call, bool named_kernel, std::map<int, CUkernelNodeAttrValue> attributes) {
    auto work = std::make_shared<Work>(KernelWork{std::move(call), named_kernel, {}, std::move(attributes)});
    auto& kernel = std::get<KernelWork>(*work);
    for (const auto& parameter : kernel.call.layout->parameters)
        kernel.parameters.push_back(kernel.call.block.data() + parameter.offset);
    return work;
}

CUresult make_work(const CUDA_KERNEL_NODE_PARAMS* p, SharedWork& work) {
    GPUKERNEL_CURRENT(connection);
    if (!p || (!p->func && !p->kern)) return CUDA_ERROR_INVALID_VALUE;
    KernelCall call;
    call.function = p->func ? static_cast<const void*>(p->func) : p->kern;
    const unsigned shape[6] = {p->gridDimX,  p->gridDimY,  p->gridDimZ,
                               p->blockDimX, p->blockDimY, p->blockDimZ};
    for (int i = 0; i < 6; ++i)
        if (!(call.shape[i] = shape[i])) return CUDA_ERROR_INVALID_VALUE;
    call.shared = p->sharedMemBytes;
    if (CUresult error = pack(*connection, call, p->kernelParams, p->extra); error != CUDA_SUCCESS)
        return error;
    work = kernel_work(std::move(call), !p->func);
    return CUDA_SUCCESS;
}

CUresult make_work(const CUDA_MEMCPY3D* params, SharedWork& work) {
    GPUKERNEL_CURRENT(connection);
    if (!params) return CUDA_ERROR_INVALID_VALUE;
    CopyWork copy{*params, *params};
    CUresult error = resolve(*connection, copy.resolved);
    if (error == CUDA_SUCCESS) work = std::make_shared<Work>(copy);
    return error;
}

CUresult make_work(const CUDA_MEMSET_NODE_PARAMS* p, SharedWork& work) {
    if (!p || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4) || !p->width || !p->height)
        return CUDA_ERROR_INVALID_VALUE;
    work = std::make_shared<Work>(FillWork{*p});
    return CUDA_SUCCESS;
}

CUresult make_work(const CUDA_HOST_NODE_PARAMS* p, SharedWork& work) {
    if (!p || !p->fn) return CUDA_ERROR_INVALID_VALUE;
    work = std::make_shared<Work>(HostWork{p->fn, p->userData});
    return CUDA_SUCCESS;
}

CUresult make_work(const CUDA_BATCH_MEM_OP_NODE_PARAMS* p, SharedWork& work) {
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    CUresult error = check_operations(p->count, p->paramArray, p->flags);
    if (error == CUDA_SUCCESS)
        work = std::make_shared<Work>(MemoryWork{{p->paramArray, p->paramArray + p->count}});
    return error;
}

CUresult make_work(const CUgraphNodeParams* p, SharedWork& work) {
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    switch (p->type) {
        case CU_GRAPH_NODE_TYPE_KERNEL: {
            const auto& k = p->kernel;
            const CUDA_KERNEL_NODE_PARAMS params{k.func,         k.gridDimX,  k.gridDimY,  k.gridDimZ,
                                                 k.blockDimX,    k.blockDimY, k.blockDimZ, k.sharedMemBytes,
                                                 k.kernelParams, k.extra,     k.kern,      k.ctx};
            return make_work(&params, work);
        }
        case CU_GRAPH_NODE_TYPE_MEMCPY:
            return make_work(&p->memcpy.copyParams, work);
        case CU_GRAPH_NODE_TYPE_MEMSET: {
            const auto& m = p->memset;
            const CUDA_MEMSET_NODE_PARAMS params{m.dst, m.pitch, m.value, m.elementSize, m.width, m.height};
            return make_work(&params, work);
        }
        case CU_GRAPH_NODE_TYPE_HOST: {
            const CUDA_HOST_NODE_PARAMS params{p->host.fn, p->host.userData};
            return make_work(&params, work);
        }
        case CU_GRAPH_NODE_TYPE_EMPTY:
            work = std::make_shared<Work>(EmptyWork{});
            return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
            work = std::make_shared<Work>(WaitWork{p->eventWait.event});
            return p->eventWait.event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
            work = std::make_shared<Work>(RecordWork{p->eventRecord.event});
            return p->eventRecord.event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
            const auto& m = p->memOp;
            const CUDA_BATCH_MEM_OP_NODE_PARAMS params{m.ctx, m.count, m.paramArray, m.flags};
            return make_work(&params, work);
        }
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        case CU_GRAPH_NODE_TYPE_MEM_FREE:
            return CUDA_ERROR_NOT_SUPPORTED;  // they cannot be changed
        default:
            return gpukernel::unsupported(
                "a change of a conditional node, or a node that signals other programs");
    }
}

}  // namespace gpukernel::shim

using namespace gpukernel::shim;

namespace {
CUresult add(CUgraphNode* node, CUgraph hGraph, const CUgraphNode* dependencies, const CUgraphEdgeData* data,
             size_t count, SharedWork work) {
    LockedGraphs graphs;
    Graph* graph = graphs->find(hGraph);
    std::vector<Edge> edges;
    if (!graph || !node) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = edges_of(graphs, *graph, dependencies, data, count, edges); error != CUDA_SUCCESS)
        return error;
    *node = handle(graphs->add(*graph, std::move(work), std::move(edges)));
    return CUDA_SUCCESS;
}

template <class Params>
CUresult make_and_add(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                      const CUgraphEdgeData* data, size_t count, const Params* params) {
    SharedWork work;
    CUresult error = make_work(params, work);
    return error == CUDA_SUCCESS ? add(node, graph, dependencies, data, count, std::move(work)) : error;
}

CUresult add_child(CUgraphNode* node, CUgraph hGraph, const CUgraphNode* dependencies,
                   const CUgraphEdgeData* data, size_t count, CUgraph child, bool move) {
    LockedGraphs graphs;
    Graph *graph = graphs->find(hGraph), *inner = graphs->find(child);
    std::vector<Edge> edges;
    if (!graph || !inner || !node) return CUDA_ERROR_INVALID_VALUE;
    if (move && (inner->owner || inner == graph || inner->captures)) return CUDA_ERROR_INVALID_VALUE;
    if (inner->moved) return CUDA_ERROR_INVALID_VALUE;
    if (decides(*inner)) return CUDA_ERROR_NOT_SUPPORTED;
    if (CUresult error = edges_of(graphs, *graph, dependencies, data, count, edges); error != CUDA_SUCCESS)
        return error;
    if (inner->memory) {
        if (!move || graph->owner || root(inner->memory.get())->instantiated) return CUDA_ERROR_NOT_SUPPORTED;
        if (!graph->memory) graph->memory = std::make_shared<Arena>();
        move_memory(inner->memory, graph->memory);
    }
    // Cloned first, since a graph may be added to itself.
    std::unique_ptr<Graph> copy = move ? std::unique_ptr<Graph>(inner) : graphs->clone(*inner, nullptr);
    Node* made = graphs->add(*graph, std::make_shared<Work>(ChildWork{}), std::move(edges));
    made->child = std::move(copy);
    made->child->owner = made;
    made->child->moved = move;
    *node = handle(made);
    return CUDA_SUCCESS;
}

template <class Kind>
CUresult look(CUgraphNode hNode, const Kind*& kind, SharedWork& work) {
    LockedGraphs graphs;
    Node* node = graphs->find(hNode);
    if (!node) return CUDA_ERROR_INVALID_VALUE;
    work = node->work;
    kind = std::get_if<Kind>(work.get());
    return kind ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult replace(CUgraphNode hNode, SharedWork work) {
    LockedGraphs graphs;
    Node* node = graphs->find(hNode);
    if (!node || node->work->index() != work->index()) return CUDA_ERROR_INVALID_VALUE;
    if (const auto* before = std::get_if<KernelWork>(node->work.get())) {
        auto& fresh = std::get<KernelWork>(*work);
        KernelCall call = fresh.call;  // attributes stay
        call.mode = before->call.mode;
        work = kernel_work(std::move(call), fresh.named_kernel, before->attributes);
    }
    node->work = std::move(work);
    return CUDA_SUCCESS;
}

template <class Params>
CUresult make_and_replace(CUgraphNode node, const Params* params) {
    SharedWork work;
    CUresult error = make_work(params, work);
    return error == CUDA_SUCCESS ? replace(node, std::move(work)) : error;
}

template <class Params>
CUresult make_and_exchange(CUgraphExec executable, CUgraphNode node, const Params* params) {
    SharedWork work;
    CUresult error = make_work(params, work);
    return error == CUDA_SUCCESS ? exchange(executable, node, std::move(work)) : error;
}

CUDA_KERNEL_NODE_PARAMS wide(const CUDA_KERNEL_NODE_PARAMS_v1& p) {
    return {p.func,      p.gridDimX,       p.gridDimY,     p.gridDimZ, p.blockDimX, p.blockDimY,
            p.blockDimZ, p.sharedMemBytes, p.kernelParams, p.extra,    nullptr,     nullptr};
}
}  // namespace

// --- kernels ---

CUresult CUDAAPI cuGraphAddKernelNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                                         const CUgraphNode* dependencies, size_t numDependencies,
                                         const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
    return make_and_add(phGraphNode, hGraph, dependencies, nullptr, numDependencies, nodeParams);
}
CUresult CUDAAPI cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
    return make_and_replace(hNode, nodeParams);
}
CUresult CUDAAPI cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                   const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
    return make_and_exchange(hGraphExec, hNode, nodeParams);
}
// The returned parameters are valid until they are set or the node is destroyed.
CUresult CUDAAPI cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS* nodeParams) {
    SharedWork work;
    const KernelWork* kernel;
    CUresult error = look(hNode, kernel, work);
    if (error != CUDA_SUCCESS || !nodeParams) return CUDA_ERROR_INVALID_VALUE;
    const KernelCall& call = kernel->call;
    void* const function = const_cast<void*>(call.named);
    const unsigned* s = call.shape;
    *nodeParams = {kernel->named_kernel ? nullptr : static_cast<CUfunction>(function),
                   s[0],
                   s[1],
                   s[2],
                   s[3],
                   s[4],
                   s[5],
                   call.shared,
                   kernel->parameters.empty() ? nullptr : const_cast<void**>(kernel->parameters.data()),
                   nullptr,
                   kernel->named_kernel ? static_cast<CUkernel>(function) : nullptr,
                   nullptr};
    return CUDA_SUCCESS;
}
#undef cuGraphAddKernelNode
#undef cuGraphKernelNodeSetParams
#undef cuGraphKernelNodeGetParams
#undef cuGraphExecKernelNodeSetParams
extern "C" CUresult cuGraphAddKernelNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                         const CUgraphNode* dependencies, size_t numDependencies,
                                         const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_KERNEL_NODE_PARAMS params = wide(*nodeParams);
    return make_and_add(phGraphNode, hGraph, dependencies, nullptr, numDependencies, &params);
}
extern "C" CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode,
                                               const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_KERNEL_NODE_PARAMS params = wide(*nodeParams);
    return make_and_replace(hNode, &params);
}
extern "C" CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                   const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_KERNEL_NODE_PARAMS params = wide(*nodeParams);
    return make_and_exchange(hGraphExec, hNode, &params);
}
extern "C" CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
    CUDA_KERNEL_NODE_PARAMS p;
    CUresult error = cuGraphKernelNodeGetParams_v2(hNode, &p);
    if (error != CUDA_SUCCESS || !nodeParams) return CUDA_ERROR_INVALID_VALUE;
    *nodeParams = {p.func ? p.func : reinterpret_cast<CUfunction>(p.kern),
                   p.gridDimX,
                   p.gridDimY,
                   p.gridDimZ,
                   p.blockDimX,
                   p.blockDimY,
                   p.blockDimZ,
                   p.sharedMemBytes,
                   p.kernelParams,
                   p.extra};
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                               CUkernelNodeAttrValue* value_out) {
    SharedWork work;
    const KernelWork* kernel;
    CUresult error = look(hNode, kernel, work);
    if (error != CUDA_SUCCESS || !value_out) return CUDA_ERROR_INVALID_VALUE;
    auto it = kernel->attributes.find(attr);
    *value_out = it == kernel->attributes.end() ? CUkernelNodeAttrValue{} : it->second;
    const gpukernel::wire::LaunchMode& mode = kernel->call.mode;
    if (attr == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) value_out->cooperative = mode.cooperative;
    if (attr == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        value_out->clusterDim = {mode.cluster[0], mode.cluster[1], mode.cluster[2]};
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                               const CUkernelNodeAttrValue* value) {
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    LockedGraphs graphs;
    Node* node = graphs->find(hNode);
    const auto* kernel = node ? std::get_if<KernelWork>(node->work.get()) : nullptr;
    if (!kernel) return CUDA_ERROR_INVALID_VALUE;
    auto attributes = kernel->attributes;
    attributes[attr] = *value;
    KernelCall call = kernel->call;
    if (!read_attribute(attr, *value, call.mode)) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    node->work = kernel_work(std::move(call), kernel->named_kernel, std::move(attributes));
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src) {
    LockedGraphs graphs;
    Node *to = graphs->find(dst), *from = graphs->find(src);
    const auto* target = to ? std::get_if<KernelWork>(to->work.get()) : nullptr;
    const auto* source = from ? std::get_if<KernelWork>(from->work.get()) : nullptr;
    if (!target || !source) return CUDA_ERROR_INVALID_VALUE;
    KernelCall call = target->call;
    call.mode = source->call.mode;
    to->work = kernel_work(std::move(call), target->named_kernel, source->attributes);
    return CUDA_SUCCESS;
}

// --- copies and fills ---

CUresult CUDAAPI cuGraphAddMemcpyNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                      const CUgraphNode* dependencies, size_t numDependencies,
                                      const CUDA_MEMCPY3D* copyParams, CUcontext ctx) {
    return make_and_add(phGraphNode, hGraph, dependencies, nullptr, numDependencies, copyParams);
}
CUresult CUDAAPI cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D* nodeParams) {
    SharedWork work;
    const CopyWork* copy;
    CUresult error = look(hNode, copy, work);
    if (error != CUDA_SUCCESS || !nodeParams) return CUDA_ERROR_INVALID_VALUE;
    *nodeParams = copy->asked;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D* nodeParams) {
    return make_and_replace(hNode, nodeParams);
}
CUresult CUDAAPI cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                const CUDA_MEMCPY3D* copyParams, CUcontext ctx) {
    return make_and_exchange(hGraphExec, hNode, copyParams);
}

CUresult CUDAAPI cuGraphAddMemsetNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                      const CUgraphNode* dependencies, size_t numDependencies,
                                      const CUDA_MEMSET_NODE_PARAMS* memsetParams, CUcontext ctx) {
    return make_and_add(phGraphNode, hGraph, dependencies, nullptr, numDependencies, memsetParams);
}
CUresult CUDAAPI cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS* nodeParams) {
    SharedWork work;
    const FillWork* fill;
    CUresult error = look(hNode, fill, work);
    if (error != CUDA_SUCCESS || !nodeParams) return CUDA_ERROR_INVALID_VALUE;
    *nodeParams = fill->params;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS* nodeParams) {
    return make_and_replace(hNode, nodeParams);
}
CUresult CUDAAPI cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                const CUDA_MEMSET_NODE_PARAMS* memsetParams, CUcontext ctx) {
    return make_and_exchange(hGraphExec, hNode, memsetParams);
}

// --- stream memory operations ---

CUresult CUDAAPI cuGraphAddBatchMemOpNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                          const CUgraphNode* dependencies, size_t numDependencies,
                                          const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
    return make_and_add(phGraphNode, hGraph, dependencies, nullptr, numDependencies, nodeParams);
}
// The returned operations are valid until they are set or the node is destroyed.
CUresult CUDAAPI cuGraphBatchMemOpNodeGetParams(CUgraphNode hNode,
                                                CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams_out) {
    SharedWork work;
    const MemoryWork* memory;
    CUresult error = look(hNode, memory, work);
    if (error != CUDA_SUCCESS || !nodeParams_out) return CUDA_ERROR_INVALID_VALUE;
    *nodeParams_out = {nullptr, static_cast<unsigned>(memory->operations.size()),
                       const_cast<CUstreamBatchMemOpParams*>(memory->operations.data()), 0};
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode,
                                                const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
    return make_and_replace(hNode, nodeParams);
}
CUresult CUDAAPI cuGraphExecBatchMemOpNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                    const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
    return make_and_exchange(hGraphExec, hNode, nodeParams);
}

// --- host functions, events, empty nodes ---

CUresult CUDAAPI cuGraphAddHostNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                    size_t numDependencies, const CUDA_HOST_NODE_PARAMS* nodeParams) {
    return make_and_add(phGraphNode, hGraph, dependencies, nullptr, numDependencies, nodeParams);
}
CUresult CUDAAPI cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS* nodeParams) {
    SharedWork work;
    const HostWork* host;
    CUresult error = look(hNode, host, work);
    if (error != CUDA_SUCCESS || !nodeParams) return CUDA_ERROR_INVALID_VALUE;
    *nodeParams = {host->function, host->data};
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS* nodeParams) {
    return make_and_replace(hNode, nodeParams);
}
CUresult CUDAAPI cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                              const CUDA_HOST_NODE_PARAMS* nodeParams) {
    return make_and_exchange(hGraphExec, hNode, nodeParams);
}

CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                     const CUgraphNode* dependencies, size_t numDependencies) {
    return add(phGraphNode, hGraph, dependencies, nullptr, numDependencies,
               std::make_shared<Work>(EmptyWork{}));
}

CUresult CUDAAPI cuGraphAddEventRecordNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                           const CUgraphNode* dependencies, size_t numDependencies,
                                           CUevent event) {
    if (!event) return CUDA_ERROR_INVALID_VALUE;
    return add(phGraphNode, hGraph, dependencies, nullptr, numDependencies,
               std::make_shared<Work>(RecordWork{event}));
}
CUresult CUDAAPI cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent* event_out) {
    SharedWork work;
    const RecordWork* node;
    CUresult error = look(hNode, node, work);
    if (error != CUDA_SUCCESS || !event_out) return CUDA_ERROR_INVALID_VALUE;
    *event_out = node->event;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event) {
    return event ? replace(hNode, std::make_shared<Work>(RecordWork{event})) : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                    CUevent event) {
    return event ? exchange(hGraphExec, hNode, std::make_shared<Work>(RecordWork{event}))
                 : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuGraphAddEventWaitNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                         const CUgraphNode* dependencies, size_t numDependencies,
                                         CUevent event) {
    if (!event) return CUDA_ERROR_INVALID_VALUE;
    return add(phGraphNode, hGraph, dependencies, nullptr, numDependencies,
               std::make_shared<Work>(WaitWork{event}));
}
CUresult CUDAAPI cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent* event_out) {
    SharedWork work;
    const WaitWork* node;
    CUresult error = look(hNode, node, work);
    if (error != CUDA_SUCCESS || !event_out) return CUDA_ERROR_INVALID_VALUE;
    *event_out = node->event;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event) {
    return event ? replace(hNode, std::make_shared<Work>(WaitWork{event})) : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event) {
    return event ? exchange(hGraphExec, hNode, std::make_shared<Work>(WaitWork{event}))
                 : CUDA_ERROR_INVALID_VALUE;
}

// --- child graphs ---

CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                          const CUgraphNode* dependencies, size_t numDependencies,
                                          CUgraph childGraph) {
    return add_child(phGraphNode, hGraph, dependencies, nullptr, numDependencies, childGraph, false);
}
CUresult CUDAAPI cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph* phGraph) {
    LockedGraphs graphs;
    Node* node = graphs->find(hNode);
    if (!node || !node->child || !phGraph) return CUDA_ERROR_INVALID_VALUE;
    *phGraph = handle(node->child.get());
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                    CUgraph childGraph) {
    return exchange_child(hGraphExec, hNode, childGraph);
}

// --- nodes of any type ---

CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                   const CUgraphEdgeData* dependencyData, size_t numDependencies,
                                   CUgraphNodeParams* nodeParams) {
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    if (nodeParams->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || nodeParams->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        return add_memory_node(phGraphNode, hGraph, dependencies, dependencyData, numDependencies,
                               *nodeParams);
    if (nodeParams->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return add_conditional(phGraphNode, hGraph, dependencies, dependencyData, numDependencies,
                               nodeParams->conditional);
    if (nodeParams->type != CU_GRAPH_NODE_TYPE_GRAPH)
        return make_and_add(phGraphNode, hGraph, dependencies, dependencyData, numDependencies,
                            static_cast<const CUgraphNodeParams*>(nodeParams));
    CUresult error =
        add_child(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams->graph.graph,
                  nodeParams->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE);
    if (error == CUDA_SUCCESS) cuGraphChildGraphNodeGetGraph(*phGraphNode, &nodeParams->graph.graph);
    return error;
}
CUresult CUDAAPI cuGraphAddNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                size_t numDependencies, CUgraphNodeParams* nodeParams) {
    return cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, nullptr, numDependencies, nodeParams);
}
CUresult CUDAAPI cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams* nodeParams) {
    return make_and_replace(hNode, static_cast<const CUgraphNodeParams*>(nodeParams));
}
CUresult CUDAAPI cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                          CUgraphNodeParams* nodeParams) {
    if (nodeParams && nodeParams->type == CU_GRAPH_NODE_TYPE_GRAPH)
        return exchange_child(hGraphExec, hNode, nodeParams->graph.graph);
    return make_and_exchange(hGraphExec, hNode, static_cast<const CUgraphNodeParams*>(nodeParams));
}

extern "C" CUresult cuGraphNodeGetParams(CUgraphNode hNode, CUgraphNodeParams* nodeParams) {
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams p;
    std::memset(&p, 0, sizeof p);
    if (CUresult error = cuGraphNodeGetType(hNode, &p.type); error != CUDA_SUCCESS) return error;
    CUcontext context = nullptr;
    {
        LockedGraphs graphs;
        Node* const node = graphs->find(hNode);
        if (!node) return CUDA_ERROR_INVALID_VALUE;
        context = node->context;
        if (const auto* work = std::get_if<ConditionalWork>(&*node->work))
            p.conditional = {work->condition->address, work->type, static_cast<unsigned>(node->bodies.size()),
                             node->body_handles.data(), work->condition->context};
    }
    CUresult result = CUDA_SUCCESS;
    switch (p.type) {
        case CU_GRAPH_NODE_TYPE_KERNEL: {
            CUDA_KERNEL_NODE_PARAMS kernel;
            static_assert(sizeof kernel == sizeof p.kernel);
            result = cuGraphKernelNodeGetParams_v2(hNode, &kernel);
            std::memcpy(&p.kernel, &kernel, sizeof kernel);
            break;
        }
        case CU_GRAPH_NODE_TYPE_MEMCPY:
            p.memcpy.copyCtx = context;
            result = cuGraphMemcpyNodeGetParams(hNode, &p.memcpy.copyParams);
            break;
        case CU_GRAPH_NODE_TYPE_MEMSET: {
            CUDA_MEMSET_NODE_PARAMS fill;
            result = cuGraphMemsetNodeGetParams(hNode, &fill);
            p.memset = {fill.dst, fill.pitch, fill.value, fill.elementSize, fill.width, fill.height, context};
            break;
        }
        case CU_GRAPH_NODE_TYPE_HOST: {
            CUDA_HOST_NODE_PARAMS host;
            result = cuGraphHostNodeGetParams(hNode, &host);
            p.host.fn = host.fn, p.host.userData = host.userData;
            break;
        }
        case CU_GRAPH_NODE_TYPE_GRAPH:
            result = cuGraphChildGraphNodeGetGraph(hNode, &p.graph.graph);
            break;
        case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
            result = cuGraphEventWaitNodeGetEvent(hNode, &p.eventWait.event);
            break;
        case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
            result = cuGraphEventRecordNodeGetEvent(hNode, &p.eventRecord.event);
            break;
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
            CUDA_MEM_ALLOC_NODE_PARAMS alloc;
            static_assert(sizeof alloc == sizeof p.alloc);
            result = cuGraphMemAllocNodeGetParams(hNode, &alloc);
            std::memcpy(&p.alloc, &alloc, sizeof alloc);
            break;
        }
        case CU_GRAPH_NODE_TYPE_MEM_FREE:
            result = cuGraphMemFreeNodeGetParams(hNode, &p.free.dptr);
            break;
        case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
            CUDA_BATCH_MEM_OP_NODE_PARAMS batch;
            static_assert(sizeof batch == sizeof p.memOp);
            result = cuGraphBatchMemOpNodeGetParams(hNode, &batch);
            std::memcpy(&p.memOp, &batch, sizeof batch);
            break;
        }
        default:
            break;  // an empty node has none
    }
    if (result == CUDA_SUCCESS) *nodeParams = p;
    return result;
}
