// Nodes of graphs that copy or set memory: of pitched memory and arrays, of plain bytes, and of the program's
// variables.
#include <initializer_list>

#include "cudart/runtime.h"

using namespace gpukernel::cudart;

namespace {

enum class To { graph, node, exec };

// Where a copy goes: a new node of a graph, a node that is there, or its form in an executable.
struct Place {
    To to;
    cudaGraphNode_t* created = nullptr;
    cudaGraph_t graph = nullptr;
    const cudaGraphNode_t* after = nullptr;
    size_t count = 0;
    cudaGraphNode_t node = nullptr;
    cudaGraphExec_t exec = nullptr;
};

CUresult put(const Place& place, const CUDA_MEMCPY3D& copy) {
    CUcontext context;
    if (CUresult result = driver::cuCtxGetCurrent(&context)) return result;
    switch (place.to) {
        case To::graph:
            return driver::cuGraphAddMemcpyNode(place.created, place.graph, place.after, place.count, &copy,
                                                context);
        case To::node:
            return driver::cuGraphMemcpyNodeSetParams(place.node, &copy);
        default:
            return driver::cuGraphExecMemcpyNodeSetParams(place.exec, place.node, &copy, context);
    }
}

cudaError_t put(const Place& place, const cudaMemcpy3DParms* from) {
    if (!from) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUDA_MEMCPY3D copy;
    if (CUresult result = copy_of(*from, copy)) return done(result);
    return done(put(place, copy));
}

cudaError_t put(const Place& place, void* to, const void* from, size_t count, cudaMemcpyKind kind) {
    cudaMemcpy3DParms bytes{};
    bytes.srcPtr = {const_cast<void*>(from), count, count, 1};
    bytes.dstPtr = {to, count, count, 1};
    bytes.extent = {count, 1, 1};
    bytes.kind = kind;
    return put(place, &bytes);
}

cudaError_t put_to(const Place& place, const void* symbol, const void* from, size_t count, size_t offset,
                   cudaMemcpyKind kind) {
    if (CUresult result = enter()) return done(result);
    CUdeviceptr to;
    if (cudaError_t error = part_of(symbol, count, offset, to)) return error;
    return put(place, reinterpret_cast<void*>(to), from, count, kind);
}

cudaError_t put_from(const Place& place, void* to, const void* symbol, size_t count, size_t offset,
                     cudaMemcpyKind kind) {
    if (CUresult result = enter()) return done(result);
    CUdeviceptr from;
    if (cudaError_t error = part_of(symbol, count, offset, from)) return error;
    return put(place, to, reinterpret_cast<void*>(from), count, kind);
}

Place new_node(cudaGraphNode_t* created, cudaGraph_t graph, const cudaGraphNode_t* after, size_t count) {
    return {To::graph, created, graph, after, count};
}
Place old_node(cudaGraphNode_t node) { return {.to = To::node, .node = node}; }
Place in_exec(cudaGraphExec_t exec, cudaGraphNode_t node) {
    return {.to = To::exec, .node = node, .exec = exec};
}

CUDA_MEMSET_NODE_PARAMS memset_of(const cudaMemsetParams& from) {
    return {reinterpret_cast<CUdeviceptr>(from.dst),
            from.pitch,
            from.value,
            from.elementSize,
            from.width,
            from.height};
}

}  // namespace

API cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                       size_t count, const cudaMemcpy3DParms* from) {
    return put(new_node(node, graph, after, count), from);
}
API cudaError_t cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node, const cudaMemcpy3DParms* from) {
    return put(old_node(node), from);
}
API cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                 const cudaMemcpy3DParms* from) {
    return put(in_exec(exec, node), from);
}

API cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph,
                                         const cudaGraphNode_t* after, size_t nodes, void* to,
                                         const void* from, size_t count, cudaMemcpyKind kind) {
    return put(new_node(node, graph, after, nodes), to, from, count, kind);
}
API cudaError_t cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void* to, const void* from, size_t count,
                                               cudaMemcpyKind kind) {
    return put(old_node(node), to, from, count, kind);
}
API cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node, void* to,
                                                   const void* from, size_t count, cudaMemcpyKind kind) {
    return put(in_exec(exec, node), to, from, count, kind);
}

API cudaError_t cudaGraphAddMemcpyNodeToSymbol(cudaGraphNode_t* node, cudaGraph_t graph,
                                               const cudaGraphNode_t* after, size_t nodes, const void* symbol,
                                               const void* from, size_t count, size_t offset,
                                               cudaMemcpyKind kind) {
    return put_to(new_node(node, graph, after, nodes), symbol, from, count, offset, kind);
}
API cudaError_t cudaGraphMemcpyNodeSetParamsToSymbol(cudaGraphNode_t node, const void* symbol,
                                                     const void* from, size_t count, size_t offset,
                                                     cudaMemcpyKind kind) {
    return put_to(old_node(node), symbol, from, count, offset, kind);
}
API cudaError_t cudaGraphExecMemcpyNodeSetParamsToSymbol(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                         const void* symbol, const void* from, size_t count,
                                                         size_t offset, cudaMemcpyKind kind) {
    return put_to(in_exec(exec, node), symbol, from, count, offset, kind);
}

API cudaError_t cudaGraphAddMemcpyNodeFromSymbol(cudaGraphNode_t* node, cudaGraph_t graph,
                                                 const cudaGraphNode_t* after, size_t nodes, void* to,
                                                 const void* symbol, size_t count, size_t offset,
                                                 cudaMemcpyKind kind) {
    return put_from(new_node(node, graph, after, nodes), to, symbol, count, offset, kind);
}
API cudaError_t cudaGraphMemcpyNodeSetParamsFromSymbol(cudaGraphNode_t node, void* to, const void* symbol,
                                                       size_t count, size_t offset, cudaMemcpyKind kind) {
    return put_from(old_node(node), to, symbol, count, offset, kind);
}
API cudaError_t cudaGraphExecMemcpyNodeSetParamsFromSymbol(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                           void* to, const void* symbol, size_t count,
                                                           size_t offset, cudaMemcpyKind kind) {
    return put_from(in_exec(exec, node), to, symbol, count, offset, kind);
}

API cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node, cudaMemcpy3DParms* to) {
    if (!to) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUDA_MEMCPY3D copy;
    if (CUresult result = driver::cuGraphMemcpyNodeGetParams(node, &copy)) return done(result);
    size_t element = 1;
    for (CUarray array : {copy.srcArray, copy.dstArray}) {
        if (!array) continue;
        CUDA_ARRAY3D_DESCRIPTOR shape;
        if (CUresult result = driver::cuArray3DGetDescriptor(&shape, array)) return done(result);
        element = element_bytes(shape.Format, shape.NumChannels);
    }
    *to = {};
    const bool from_host = copy.srcMemoryType == CU_MEMORYTYPE_HOST,
               to_host = copy.dstMemoryType == CU_MEMORYTYPE_HOST;
    const bool any =
        copy.srcMemoryType == CU_MEMORYTYPE_UNIFIED || copy.dstMemoryType == CU_MEMORYTYPE_UNIFIED;
    to->kind = any                    ? cudaMemcpyDefault
               : from_host && to_host ? cudaMemcpyHostToHost
               : from_host            ? cudaMemcpyHostToDevice
               : to_host              ? cudaMemcpyDeviceToHost
                                      : cudaMemcpyDeviceToDevice;
    to->srcArray = reinterpret_cast<cudaArray_t>(copy.srcArray);
    to->srcPos = {copy.srcArray ? copy.srcXInBytes / element : copy.srcXInBytes, copy.srcY, copy.srcZ};
    if (!copy.srcArray)
        to->srcPtr = {from_host ? const_cast<void*>(copy.srcHost) : reinterpret_cast<void*>(copy.srcDevice),
                      copy.srcPitch, copy.WidthInBytes, copy.srcHeight};
    to->dstArray = reinterpret_cast<cudaArray_t>(copy.dstArray);
    to->dstPos = {copy.dstArray ? copy.dstXInBytes / element : copy.dstXInBytes, copy.dstY, copy.dstZ};
    if (!copy.dstArray)
        to->dstPtr = {to_host ? copy.dstHost : reinterpret_cast<void*>(copy.dstDevice), copy.dstPitch,
                      copy.WidthInBytes, copy.dstHeight};
    to->extent = {copy.WidthInBytes / element, copy.Height, copy.Depth};
    return cudaSuccess;
}

API cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                       size_t count, const cudaMemsetParams* from) {
    if (!from) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUcontext context;
    if (CUresult result = driver::cuCtxGetCurrent(&context)) return done(result);
    const CUDA_MEMSET_NODE_PARAMS set = memset_of(*from);
    return done(driver::cuGraphAddMemsetNode(node, graph, after, count, &set, context));
}

API cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                 const cudaMemsetParams* from) {
    if (!from) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUcontext context;
    if (CUresult result = driver::cuCtxGetCurrent(&context)) return done(result);
    const CUDA_MEMSET_NODE_PARAMS set = memset_of(*from);
    return done(driver::cuGraphExecMemsetNodeSetParams(exec, node, &set, context));
}
