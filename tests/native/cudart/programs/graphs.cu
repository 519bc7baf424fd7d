// Graphs: captured, built by hand, updated.
#include "check.h"

__constant__ int bias;
__global__ void add(int* to, int value) { *to += value + bias; }
__global__ void times(int* to, int value) { *to *= value; }

int read(const int* from) {
    int value;
    OK(cudaMemcpy(&value, from, 4, cudaMemcpyDeviceToHost));
    return value;
}

int main() {
    int* to;
    OK(cudaMalloc(&to, 4));
    OK(cudaMemset(to, 0, 4));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    add<<<1, 1, 0, stream>>>(to, 2);
    times<<<1, 1, 0, stream>>>(to, 3);
    cudaStreamCaptureStatus status;
    OK(cudaStreamIsCapturing(stream, &status));
    CHECK(status == cudaStreamCaptureStatusActive);
    OK(cudaStreamEndCapture(stream, &graph));
    size_t count;
    OK(cudaGraphGetNodes(graph, nullptr, &count));
    CHECK(count == 2 && read(to) == 0);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(read(to) == (2 * 3 + 2) * 3);

    // A node says what it launches, as the program knows it; an executable takes other arguments.
    cudaGraphNode_t nodes[2];
    OK(cudaGraphGetNodes(graph, nodes, &count));
    cudaGraphNodeType type;
    OK(cudaGraphNodeGetType(nodes[0], &type));
    CHECK(type == cudaGraphNodeTypeKernel);
    for (cudaGraphNode_t node : nodes) {
        cudaKernelNodeParams params;
        OK(cudaGraphKernelNodeGetParams(node, &params));
        const bool adds = params.func == reinterpret_cast<void*>(add);
        CHECK(adds || params.func == reinterpret_cast<void*>(times));
        if (!adds) continue;
        int value = 7;
        void* arguments[] = {&to, &value};
        params.kernelParams = arguments;
        OK(cudaGraphExecKernelNodeSetParams(exec, node, &params));
    }
    OK(cudaMemset(to, 0, 4));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(read(to) == 21);

    // By hand: bytes to a variable, a memset, a kernel, a copy back, a function of the host.
    cudaGraph_t made;
    OK(cudaGraphCreate(&made, 0));
    cudaGraphNode_t set, symbol, kernel, back, host, same;
    cudaMemsetParams memset{};
    memset.dst = to, memset.value = 1, memset.elementSize = 4, memset.width = 1, memset.height = 1;
    OK(cudaGraphAddMemsetNode(&set, made, nullptr, 0, &memset));
    static int ten = 10, result = 0, called = 0;
    OK(cudaGraphAddMemcpyNodeToSymbol(&symbol, made, nullptr, 0, bias, &ten, 4, 0, cudaMemcpyHostToDevice));
    int value = 5;
    void* arguments[] = {&to, &value};
    cudaKernelNodeParams params{};
    params.func = reinterpret_cast<void*>(add);
    params.gridDim = 1, params.blockDim = 1, params.kernelParams = arguments;
    const cudaGraphNode_t before[] = {set, symbol};
    OK(cudaGraphAddKernelNode(&kernel, made, before, 2, &params));
    OK(cudaGraphAddMemcpyNode1D(&back, made, &kernel, 1, &result, to, 4, cudaMemcpyDeviceToHost));
    cudaHostNodeParams function{[](void* data) { ++*static_cast<int*>(data); }, &called};
    OK(cudaGraphAddHostNode(&host, made, &back, 1, &function));
    cudaGraphNodeParams any{};
    any.type = cudaGraphNodeTypeKernel;
    any.kernel.func = reinterpret_cast<void*>(times);
    any.kernel.gridDim = 1, any.kernel.blockDim = 1, any.kernel.kernelParams = arguments;
    OK(cudaGraphAddNode(&same, made, &back, nullptr, 1, &any));
    cudaGraphExec_t made_exec;
    OK(cudaGraphInstantiate(&made_exec, made, 0));
    OK(cudaGraphLaunch(made_exec, nullptr));
    OK(cudaDeviceSynchronize());
    CHECK(result == 16 && called == 1 && read(to) == 80);
    cudaMemcpy3DParms copied;
    OK(cudaGraphMemcpyNodeGetParams(back, &copied));
    CHECK(copied.extent.width == 4 && copied.kind == cudaMemcpyDeviceToHost && copied.dstPtr.ptr == &result);
    cudaGraph_t clone;
    OK(cudaGraphClone(&clone, made));
    OK(cudaGraphGetNodes(clone, nullptr, &count));
    CHECK(count == 6);
    // Captured into a graph that is there: its end needs no name.
    cudaGraph_t own;
    OK(cudaGraphCreate(&own, 0));
    OK(cudaStreamBeginCaptureToGraph(stream, own, nullptr, nullptr, 0, cudaStreamCaptureModeGlobal));
    times<<<1, 1, 0, stream>>>(to, 2);
    OK(cudaStreamEndCapture(stream, nullptr));
    OK(cudaGraphGetNodes(own, nullptr, &count));
    CHECK(count == 1);
    OK(cudaGraphExecDestroy(made_exec));
    OK(cudaGraphDestroy(made));
    std::puts("ok");
}
