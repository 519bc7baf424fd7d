// Graphs: kernel nodes, nodes of every kind, instantiation.  What is the same in both APIs is in
// forwards.txt; nodes that copy or set memory are in graph_copies.cpp.
#include <cstring>

#include "cudart/runtime.h"

using namespace gpukernel::cudart;

namespace {

CUresult kernel_of(const cudaKernelNodeParams& from, CUDA_KERNEL_NODE_PARAMS& to) {
    to = {};
    if (CUresult result = find_function(from.func, to.func)) return result;
    to.gridDimX = from.gridDim.x, to.gridDimY = from.gridDim.y, to.gridDimZ = from.gridDim.z;
    to.blockDimX = from.blockDim.x, to.blockDimY = from.blockDim.y, to.blockDimZ = from.blockDim.z;
    to.sharedMemBytes = from.sharedMemBytes;
    to.kernelParams = from.kernelParams;
    to.extra = from.extra;
    return CUDA_SUCCESS;
}

}  // namespace

API cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                       size_t count, const cudaKernelNodeParams* from) {
    if (!from) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUDA_KERNEL_NODE_PARAMS kernel;
    if (CUresult result = kernel_of(*from, kernel)) return done(result);
    return done(driver::cuGraphAddKernelNode(node, graph, after, count, &kernel));
}

API cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* to) {
    if (!to) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUDA_KERNEL_NODE_PARAMS kernel;
    if (CUresult result = driver::cuGraphKernelNodeGetParams(node, &kernel)) return done(result);
    const CUfunction function = kernel.func ? kernel.func : reinterpret_cast<CUfunction>(kernel.kern);
    to->func = const_cast<void*>(known_as(function));
    to->gridDim = dim3{kernel.gridDimX, kernel.gridDimY, kernel.gridDimZ};
    to->blockDim = dim3{kernel.blockDimX, kernel.blockDimY, kernel.blockDimZ};
    to->sharedMemBytes = kernel.sharedMemBytes;
    to->kernelParams = kernel.kernelParams;
    to->extra = kernel.extra;
    return cudaSuccess;
}

API cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node, const cudaKernelNodeParams* from) {
    if (!from) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUDA_KERNEL_NODE_PARAMS kernel;
    if (CUresult result = kernel_of(*from, kernel)) return done(result);
    return done(driver::cuGraphKernelNodeSetParams(node, &kernel));
}

API cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                 const cudaKernelNodeParams* from) {
    if (!from) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUDA_KERNEL_NODE_PARAMS kernel;
    if (CUresult result = kernel_of(*from, kernel)) return done(result);
    return done(driver::cuGraphExecKernelNodeSetParams(exec, node, &kernel));
}

#if MAJOR < 12
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, cudaGraphNode_t* failed,
                                     char* log, size_t bytes) {
    if (CUresult result = enter()) return done(result);
    if (failed) *failed = nullptr;
    if (log && bytes) *log = 0;
    return done(driver::cuGraphInstantiateWithFlags(exec, graph, 0));
}

API cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphNode_t* node,
                                    cudaGraphExecUpdateResult* why) {
    if (CUresult result = enter()) return done(result);
    CUgraphExecUpdateResultInfo told{};
    const CUresult result = driver::cuGraphExecUpdate(exec, graph, &told);
    if (node) *node = told.errorNode;
    if (why) *why = static_cast<cudaGraphExecUpdateResult>(told.result);
    return done(result);
}
#else
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
    if (CUresult result = enter()) return done(result);
    return done(driver::cuGraphInstantiateWithFlags(exec, graph, flags));
}

namespace {

// Both APIs have one structure for nodes of every kind; what is in it is the same but for kernels and copies.
CUresult node_of(const cudaGraphNodeParams& from, CUgraphNodeParams& to) {
    static_assert(sizeof from == sizeof to);
    switch (from.type) {
        case cudaGraphNodeTypeKernel: {
            std::memset(&to, 0, sizeof to);
            to.type = CU_GRAPH_NODE_TYPE_KERNEL;
            const auto& kernel = from.kernel;
            if (CUresult result = find_function(kernel.func, to.kernel.func)) return result;
            to.kernel.gridDimX = kernel.gridDim.x;
            to.kernel.gridDimY = kernel.gridDim.y;
            to.kernel.gridDimZ = kernel.gridDim.z;
            to.kernel.blockDimX = kernel.blockDim.x;
            to.kernel.blockDimY = kernel.blockDim.y;
            to.kernel.blockDimZ = kernel.blockDim.z;
            to.kernel.sharedMemBytes = kernel.sharedMemBytes;
            to.kernel.kernelParams = kernel.kernelParams;
            to.kernel.extra = kernel.extra;
            return CUDA_SUCCESS;
        }
        case cudaGraphNodeTypeMemcpy: {
            std::memset(&to, 0, sizeof to);
            to.type = CU_GRAPH_NODE_TYPE_MEMCPY;
            if (CUresult result = driver::cuCtxGetCurrent(&to.memcpy.copyCtx)) return result;
            return copy_of(from.memcpy.copyParams, to.memcpy.copyParams);
        }
        case cudaGraphNodeTypeMemset:
            std::memcpy(&to, &from, sizeof to);
            return driver::cuCtxGetCurrent(&to.memset.ctx);
        case cudaGraphNodeTypeConditional:
            std::memcpy(&to, &from, sizeof to);
            return driver::cuCtxGetCurrent(&to.conditional.ctx);
        case cudaGraphNodeTypeHost:
        case cudaGraphNodeTypeGraph:
        case cudaGraphNodeTypeEmpty:
        case cudaGraphNodeTypeWaitEvent:
        case cudaGraphNodeTypeEventRecord:
        case cudaGraphNodeTypeMemAlloc:
        case cudaGraphNodeTypeMemFree:
            std::memcpy(&to, &from, sizeof to);
            return CUDA_SUCCESS;
        default:
            unsupported("cudaGraphAddNode of external semaphores");
            return CUDA_ERROR_NOT_SUPPORTED;
    }
}

cudaError_t add(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                const cudaGraphEdgeData* edges, size_t count, cudaGraphNodeParams* from) {
    if (!from) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUgraphNodeParams to;
    if (CUresult result = node_of(*from, to)) return done(result);
    if (CUresult result = invoke(driver::cuGraphAddNode_v12030, node, graph, after, edges, count, &to))
        return done(result);
    // Where the driver answers in the structure: the memory's address, the bodies of a conditional node.
    if (from->type == cudaGraphNodeTypeMemAlloc) from->alloc.dptr = reinterpret_cast<void*>(to.alloc.dptr);
    if (from->type == cudaGraphNodeTypeConditional)
        from->conditional.phGraph_out = to.conditional.phGraph_out;
    return cudaSuccess;
}

}  // namespace

API cudaError_t cudaGraphNodeSetParams(cudaGraphNode_t node, cudaGraphNodeParams* from) {
    if (!from) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUgraphNodeParams to;
    if (CUresult result = node_of(*from, to)) return done(result);
    return done(driver::cuGraphNodeSetParams(node, &to));
}

API cudaError_t cudaGraphExecNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                           cudaGraphNodeParams* from) {
    if (!from) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUgraphNodeParams to;
    if (CUresult result = node_of(*from, to)) return done(result);
    return done(driver::cuGraphExecNodeSetParams(exec, node, &to));
}

// The handle of a condition belongs to the current context.
API cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle* handle, cudaGraph_t graph,
                                                 unsigned int value, unsigned int flags) {
    if (CUresult result = enter()) return done(result);
    CUcontext context;
    if (CUresult result = driver::cuCtxGetCurrent(&context)) return done(result);
    return done(invoke(driver::cuGraphConditionalHandleCreate, handle, graph, context, value, flags));
}
#endif

#if MAJOR == 12
API cudaError_t cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                 size_t count, cudaGraphNodeParams* from) {
    return add(node, graph, after, nullptr, count, from);
}
API cudaError_t cudaGraphAddNode_v2(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                    const cudaGraphEdgeData* edges, size_t count, cudaGraphNodeParams* from) {
    return add(node, graph, after, edges, count, from);
}
#endif
#if MAJOR >= 13
API cudaError_t cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                 const cudaGraphEdgeData* edges, size_t count, cudaGraphNodeParams* from) {
    return add(node, graph, after, edges, count, from);
}
#endif
