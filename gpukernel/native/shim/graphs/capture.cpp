// Stream capture: the calls on a capturing stream become nodes of a graph.
#include "shim/graphs/capture.h"

#include <algorithm>
#include <thread>

#include "shim/graphs/graphs.h"

namespace gpukernel::shim {

std::atomic<int> captures_and_events{0};

namespace {
struct Capture {
    unsigned long long id;
    Connection* connection;
    CUstream origin;
    CUstreamCaptureMode mode;
    std::thread::id thread = std::this_thread::get_id();
    Graph* graph = nullptr;
    bool callers_graph = false;  // the program's own, which outlives a failed capture
    bool invalid = false;
    std::map<CUstream, std::vector<Edge>> streams = {};  // the last nodes of each that takes part
    std::vector<CUgraphNode> shown = {};                 // the array that cuStreamGetCaptureInfo returned
    std::vector<CUgraphEdgeData> shown_data = {};
};

struct CapturedEvent {
    unsigned long long capture;
    std::vector<Edge> after;
};

// Streams and events are numbered by connection, so numbers of two connections may be equal.
using Key = std::pair<const Connection*, const void*>;

struct CaptureState {  // under the mutex of graphs
    std::vector<std::unique_ptr<Capture>> captures;
    std::map<Key, Capture*> streams;
    std::map<Key, CapturedEvent> events;
    unsigned long long ids = 0;

    Capture* find(const Connection& connection, CUstream stream) {
        auto it = streams.find({&connection, stream});
        return it == streams.end() ? nullptr : it->second;
    }
    Capture* find(unsigned long long id) {
        for (auto& capture : captures)
            if (capture->id == id) return capture.get();
        return nullptr;
    }
    void count() { captures_and_events = static_cast<int>(captures.size() + events.size()); }
};
CaptureState& state() {
    static CaptureState* const instance = new CaptureState;  // threads may be inside at exit
    return *instance;
}

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// Has a mutex of its own, because it is used under a connection's mutex.
std::mutex flags_mutex;
std::map<Key, unsigned> stream_flags;

unsigned flags_of(const Connection& connection, CUstream stream) {
    std::lock_guard lock(flags_mutex);
    auto it = stream_flags.find({&connection, stream});
    return it == stream_flags.end() ? 0 : it->second;
}

bool is_legacy(CUstream stream) { return !stream || stream == CU_STREAM_LEGACY; }

// The captures that the legacy stream would have to wait for.
bool blocks_legacy(const Capture& capture, const Connection& connection) {
    return capture.connection == &connection &&
           std::any_of(capture.streams.begin(), capture.streams.end(), [&](const auto& each) {
               return !(flags_of(connection, each.first) & CU_STREAM_NON_BLOCKING);
           });
}

Captured refused(Capture& capture, CUresult error) {
    capture.invalid = true;
    return error;
}

// Finds the capture that `stream` takes part in; a result where the call fails already.
Captured enter(const Connection& connection, CUstream stream, Capture*& capture) {
    capture = state().find(connection, stream);
    if (capture) return capture->invalid ? Captured(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) : std::nullopt;
    if (!is_legacy(stream)) return {};
    Captured answer;
    for (auto& each : state().captures)
        if (blocks_legacy(*each, connection)) answer = refused(*each, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    return answer;
}

Node* append(LockedGraphs& graphs, Capture& capture, CUstream stream, SharedWork work) {
    std::vector<Edge>& last = capture.streams[stream];
    Node* node = graphs->add(*capture.graph, std::move(work), last);
    last = {{node, {}}};
    return node;
}

template <class Make>
Captured captured_node(Connection& connection, CUstream stream, Make make) {
    LockedGraphs graphs;
    Capture* capture;
    Captured answer = enter(connection, stream, capture);
    if (answer || !capture) return answer;
    SharedWork work;
    // The capture fails, since a graph must not silently lack a call.
    if (CUresult error = make(work); error != CUDA_SUCCESS) return refused(*capture, error);
    append(graphs, *capture, stream, std::move(work));
    return CUDA_SUCCESS;
}

Captured captured_fill(Connection& connection, CUdeviceptr address, size_t pitch, unsigned value,
                       unsigned element, size_t width, size_t height, CUstream stream) {
    return captured_node(connection, stream, [&](SharedWork& work) {
        const CUDA_MEMSET_NODE_PARAMS params{address, pitch, value, element, width, height};
        return make_work(&params, work);
    });
}

Captured captured_event(const Connection& connection, CUevent event) {
    auto it = state().events.find({&connection, event});
    if (it == state().events.end()) return {};
    if (Capture* capture = state().find(it->second.capture)) capture->invalid = true;
    return CUDA_ERROR_CAPTURED_EVENT;
}

void end(LockedGraphs& graphs, Capture& capture, bool drop) {
    --capture.graph->captures;
    if (drop && !capture.callers_graph) graphs->end(std::unique_ptr<Graph>(capture.graph));
    std::erase_if(state().streams, [&](const auto& each) { return each.second == &capture; });
    std::erase_if(state().captures, [&](const auto& each) { return each.get() == &capture; });
    state().count();
}

void join(std::vector<Edge>& last, const std::vector<Edge>& others) {
    for (const Edge& edge : others)
        if (std::none_of(last.begin(), last.end(), [&](const Edge& e) { return e.other == edge.other; }))
            last.push_back(edge);
}
}  // namespace

// --- calls on streams ---

Captured captured_launch(Connection& connection, const KernelCall& call, void** params, void** extra,
                         CUstream stream) {
    return captured_node(connection, stream, [&](SharedWork& work) {
        KernelCall packed = call;
        CUresult error = pack(connection, packed, params, extra);
        if (error == CUDA_SUCCESS) work = kernel_work(std::move(packed), false);
        return error;
    });
}
Captured captured_copy(Connection& connection, const CUDA_MEMCPY3D& copy, CUstream stream) {
    return captured_node(connection, stream, [&](SharedWork& work) { return make_work(&copy, work); });
}
Captured captured_operations(Connection& connection, const MemoryOperations& operations, CUstream stream) {
    return captured_node(connection, stream, [&](SharedWork& work) {
        work = std::make_shared<Work>(MemoryWork{operations});
        return CUDA_SUCCESS;
    });
}
Captured captured_library(Connection& connection, const LibraryCall& call, CUstream stream) {
    return captured_node(connection, stream, [&](SharedWork& work) {
        work = std::make_shared<Work>(LibraryWork{call});
        return CUDA_SUCCESS;
    });
}
Captured captured_host(Connection& connection, CUhostFn function, void* data, CUstream stream) {
    return captured_node(connection, stream, [&](SharedWork& work) {
        work = std::make_shared<Work>(HostWork{function, data});
        return CUDA_SUCCESS;
    });
}
Captured captured_graph(Connection& connection, Executable& executable, LockedGraphs& graphs,
                        CUstream stream) {
    Capture* capture;
    Captured answer = enter(connection, stream, capture);
    if (answer || !capture) return answer;
    if (executable.graph->memory || decides(*executable.graph))
        return refused(*capture, CUDA_ERROR_NOT_SUPPORTED);
    Node* node = append(graphs, *capture, stream, std::make_shared<Work>(ChildWork{}));
    node->child = graphs->clone(*executable.graph, nullptr);
    node->child->owner = node;
    return CUDA_SUCCESS;
}

Captured captured_cuMemcpyDtoDAsync_v2(Connection& connection, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                       CUstream stream) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from, copy.dstDevice = to;
    copy.srcPitch = copy.dstPitch = copy.WidthInBytes = bytes;
    copy.srcHeight = copy.dstHeight = copy.Height = copy.Depth = 1;
    return captured_copy(connection, copy, stream);
}
Captured captured_cuMemsetD8Async(Connection& c, CUdeviceptr at, unsigned char value, size_t n, CUstream s) {
    return captured_fill(c, at, 0, value, 1, n, 1, s);
}
Captured captured_cuMemsetD16Async(Connection& c, CUdeviceptr at, unsigned short value, size_t n,
                                   CUstream s) {
    return captured_fill(c, at, 0, value, 2, n, 1, s);
}
Captured captured_cuMemsetD32Async(Connection& c, CUdeviceptr at, unsigned value, size_t n, CUstream s) {
    return captured_fill(c, at, 0, value, 4, n, 1, s);
}
Captured captured_cuMemsetD2D8Async(Connection& c, CUdeviceptr at, size_t pitch, unsigned char value,
                                    size_t width, size_t height, CUstream s) {
    return captured_fill(c, at, pitch, value, 1, width, height, s);
}
Captured captured_cuMemsetD2D16Async(Connection& c, CUdeviceptr at, size_t pitch, unsigned short value,
                                     size_t width, size_t height, CUstream s) {
    return captured_fill(c, at, pitch, value, 2, width, height, s);
}
Captured captured_cuMemsetD2D32Async(Connection& c, CUdeviceptr at, size_t pitch, unsigned value,
                                     size_t width, size_t height, CUstream s) {
    return captured_fill(c, at, pitch, value, 4, width, height, s);
}

Captured captured_refusal(Connection& connection, CUstream stream) {
    LockedGraphs graphs;
    Capture* capture;
    Captured answer = enter(connection, stream, capture);
    return !answer && capture ? refused(*capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) : answer;
}
Captured captured_cuStreamSynchronize(Connection& c, CUstream stream) { return captured_refusal(c, stream); }
Captured captured_cuStreamQuery(Connection& c, CUstream stream) { return captured_refusal(c, stream); }

Captured captured_cuMemAllocAsync(Connection& connection, CUdeviceptr* address, size_t bytes,
                                  CUstream stream) {
    LockedGraphs graphs;
    Capture* capture;
    Captured answer = enter(connection, stream, capture);
    if (answer || !capture) return answer;
    if (address && !bytes) return *address = 0, CUDA_SUCCESS;  // nothing needs no node
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, context_stack().back()->device->index};
    params.bytesize = bytes;
    SharedWork work;
    CUresult error = address ? check(params) : CUDA_ERROR_INVALID_VALUE;
    if (error == CUDA_SUCCESS) error = make_work(*capture->graph, capture->streams[stream], params, work);
    if (error != CUDA_SUCCESS) return refused(*capture, error);
    note_memory(*append(graphs, *capture, stream, std::move(work)));
    *address = params.dptr;
    return CUDA_SUCCESS;
}
Captured captured_cuMemFreeAsync(Connection& connection, CUdeviceptr address, CUstream stream) {
    LockedGraphs graphs;
    Capture* capture;
    Captured answer = enter(connection, stream, capture);
    if (answer || !capture) return answer;
    if (!address) return CUDA_SUCCESS;
    SharedWork work;
    if (CUresult error = make_work(*capture->graph, address, work); error != CUDA_SUCCESS)
        return refused(*capture, error);
    note_memory(*append(graphs, *capture, stream, std::move(work)));
    return CUDA_SUCCESS;
}

// --- calls without a stream ---

Captured captured_unsafe(Connection& connection, bool legacy_stream) {
    LockedGraphs graphs;
    Capture* none;
    if (legacy_stream)
        if (Captured answer = enter(connection, nullptr, none)) return answer;
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return {};
    Captured answer;
    for (auto& each : state().captures) {
        const bool mine = each->thread == std::this_thread::get_id();
        const bool matters = mine ? each->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                                  : each->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                        thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (matters && !each->invalid) answer = refused(*each, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    return answer;
}

Captured captured_cuMemAlloc_v2(Connection& c, CUdeviceptr*, size_t) { return captured_unsafe(c, false); }
Captured captured_cuMemAllocPitch_v2(Connection& c, CUdeviceptr*, size_t*, size_t, size_t, unsigned) {
    return captured_unsafe(c, false);
}
Captured captured_cuMemcpyDtoD_v2(Connection& c, CUdeviceptr, CUdeviceptr, size_t) {
    return captured_unsafe(c, true);
}
Captured captured_cuMemsetD8_v2(Connection& c, CUdeviceptr, unsigned char, size_t) {
    return captured_unsafe(c, true);
}
Captured captured_cuMemsetD16_v2(Connection& c, CUdeviceptr, unsigned short, size_t) {
    return captured_unsafe(c, true);
}
Captured captured_cuMemsetD32_v2(Connection& c, CUdeviceptr, unsigned, size_t) {
    return captured_unsafe(c, true);
}
Captured captured_cuMemsetD2D8_v2(Connection& c, CUdeviceptr, size_t, unsigned char, size_t, size_t) {
    return captured_unsafe(c, true);
}
Captured captured_cuMemsetD2D16_v2(Connection& c, CUdeviceptr, size_t, unsigned short, size_t, size_t) {
    return captured_unsafe(c, true);
}
Captured captured_cuMemsetD2D32_v2(Connection& c, CUdeviceptr, size_t, unsigned, size_t, size_t) {
    return captured_unsafe(c, true);
}

Captured captured_cuCtxSynchronize(Connection& connection) {
    LockedGraphs graphs;
    Captured answer;
    for (auto& each : state().captures)
        if (each->connection == &connection && !each->invalid)
            answer = refused(*each, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return answer;
}

// --- events: recorded in a capture, they stand for nodes of its graph ---

Captured captured_cuEventRecordWithFlags(Connection& connection, CUevent event, CUstream stream,
                                         unsigned flags) {
    if (flags & CU_EVENT_RECORD_EXTERNAL)
        return captured_node(connection, stream, [&](SharedWork& work) {
            work = std::make_shared<Work>(RecordWork{event});
            return CUDA_SUCCESS;
        });
    LockedGraphs graphs;
    Capture* capture;
    if (Captured answer = enter(connection, stream, capture)) return answer;
    if (capture)
        state().events[{&connection, event}] = {capture->id, capture->streams[stream]};
    else
        state().events.erase({&connection, event});
    state().count();
    return capture ? Captured(CUDA_SUCCESS) : std::nullopt;
}
Captured captured_cuEventRecord(Connection& connection, CUevent event, CUstream stream) {
    return captured_cuEventRecordWithFlags(connection, event, stream, 0);
}

Captured captured_cuStreamWaitEvent(Connection& connection, CUstream stream, CUevent event, unsigned flags) {
    if (flags & CU_EVENT_WAIT_EXTERNAL)
        return captured_node(connection, stream, [&](SharedWork& work) {
            work = std::make_shared<Work>(WaitWork{event});
            return CUDA_SUCCESS;
        });
    LockedGraphs graphs;
    auto it = state().events.find({&connection, event});
    Capture* capture = state().find(connection, stream);
    if (it == state().events.end()) {
        if (Captured answer = enter(connection, stream, capture)) return answer;
        return capture ? refused(*capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION) : std::nullopt;
    }
    Capture* const recorded = state().find(it->second.capture);
    if (!recorded) {  // its capture is over: the event is invalid until it is recorded again
        if (capture) capture->invalid = true;
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    if (recorded->invalid || (capture && capture->invalid)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (is_legacy(stream)) return refused(*recorded, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    if (capture && capture != recorded) {
        capture->invalid = true;
        return refused(*recorded, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    state().streams[{&connection, stream}] = recorded;
    join(recorded->streams[stream], it->second.after);
    return CUDA_SUCCESS;
}

Captured captured_cuEventQuery(Connection& connection, CUevent event) {
    {
        LockedGraphs graphs;
        if (Captured answer = captured_event(connection, event)) return answer;
    }
    return captured_unsafe(connection, false);
}
Captured captured_cuEventSynchronize(Connection& connection, CUevent event) {
    LockedGraphs graphs;
    return captured_event(connection, event);
}
Captured captured_cuEventElapsedTime(Connection& connection, float*, CUevent start, CUevent end) {
    LockedGraphs graphs;
    Captured answer = captured_event(connection, start);
    return answer ? answer : captured_event(connection, end);
}

// --- creation and destruction of streams and events ---

void made_stream(Connection& connection, CUstream stream, unsigned flags) {
    if (!flags) return;
    std::lock_guard lock(flags_mutex);
    stream_flags[{&connection, stream}] = flags;
}
Captured captured_cuStreamDestroy_v2(Connection& connection, CUstream stream) {
    LockedGraphs graphs;
    Capture* capture = state().find(connection, stream);
    if (capture && capture->origin == stream) end(graphs, *capture, true);
    return {};
}
Captured captured_cuEventDestroy_v2(Connection& connection, CUevent event) {
    LockedGraphs graphs;
    state().events.erase({&connection, event});
    state().count();
    return {};
}

}  // namespace gpukernel::shim

using namespace gpukernel::shim;

namespace {
CUresult begin(CUstream stream, CUgraph hGraph, const CUgraphNode* dependencies, const CUgraphEdgeData* data,
               size_t count, CUstreamCaptureMode mode) {
    GPUKERNEL_CURRENT(connection);
    if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (is_legacy(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    LockedGraphs graphs;
    if (state().find(*connection, stream)) return CUDA_ERROR_ILLEGAL_STATE;
    Graph* graph = graphs->find(hGraph);
    std::vector<Edge> last;
    if (hGraph) {
        if (!graph) return CUDA_ERROR_INVALID_VALUE;
        if (CUresult error = edges_of(graphs, *graph, dependencies, data, count, last); error != CUDA_SUCCESS)
            return error;
    } else {
        graph = graphs->make().release();
    }
    ++graph->captures;
    auto capture = std::make_unique<Capture>(Capture{++state().ids, connection, stream, mode});
    capture->graph = graph;
    capture->callers_graph = hGraph;
    capture->streams[stream] = std::move(last);
    state().streams[{connection, stream}] = capture.get();
    state().captures.push_back(std::move(capture));
    state().count();
    return CUDA_SUCCESS;
}
}  // namespace

CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) {
    return begin(hStream, nullptr, nullptr, nullptr, 0, mode);
}
#undef cuStreamBeginCapture
extern "C" CUresult cuStreamBeginCapture(CUstream hStream) {
    return begin(hStream, nullptr, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                             const CUgraphNode* dependencies,
                                             const CUgraphEdgeData* dependencyData, size_t numDependencies,
                                             CUstreamCaptureMode mode) {
    if (!hGraph) return CUDA_ERROR_INVALID_VALUE;
    return begin(hStream, hGraph, dependencies, dependencyData, numDependencies, mode);
}

CUresult CUDAAPI cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) {
    GPUKERNEL_CURRENT(connection);
    if (!phGraph) return CUDA_ERROR_INVALID_VALUE;
    *phGraph = nullptr;
    LockedGraphs graphs;
    Capture* capture = state().find(*connection, hStream);
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (capture->origin != hStream) return *refused(*capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    CUresult error = capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    std::vector<Node*> last;
    for (const Edge& edge : capture->streams[hStream]) last.push_back(edge.other);
    for (const auto& [stream, edges] : capture->streams)
        for (const Edge& edge : edges)
            if (error == CUDA_SUCCESS && !is_before(edge.other, last))
                error = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (error == CUDA_SUCCESS) *phGraph = handle(capture->graph);
    end(graphs, *capture, error != CUDA_SUCCESS);
    return error;
}

// --- queries ---

namespace {
CUresult info(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
              const CUgraphNode** dependencies, const CUgraphEdgeData** data, size_t* count) {
    GPUKERNEL_CURRENT(connection);
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!capturing()) return CUDA_SUCCESS;
    LockedGraphs graphs;
    if (is_legacy(stream))  // a question spoils nothing
        for (auto& each : state().captures)
            if (blocks_legacy(*each, *connection)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    Capture* capture = state().find(*connection, stream);
    if (!capture) return CUDA_SUCCESS;
    *status = capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (capture->invalid) return CUDA_SUCCESS;
    if (id) *id = capture->id;
    if (graph) *graph = handle(capture->graph);
    capture->shown.clear(), capture->shown_data.clear();
    for (const Edge& edge : capture->streams[stream]) {
        capture->shown.push_back(handle(edge.other));
        capture->shown_data.push_back(edge.data);
        if (dependencies && !data && edge.data.type) return CUDA_ERROR_LOSSY_QUERY;
    }
    if (dependencies) *dependencies = capture->shown.data();
    if (data) *data = capture->shown_data.data();
    if (count) *count = capture->shown.size();
    return CUDA_SUCCESS;
}
}  // namespace

CUresult CUDAAPI cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus* captureStatus) {
    return info(hStream, captureStatus, nullptr, nullptr, nullptr, nullptr, nullptr);
}
CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                           cuuint64_t* id_out, CUgraph* graph_out,
                                           const CUgraphNode** dependencies_out,
                                           const CUgraphEdgeData** edgeData_out,
                                           size_t* numDependencies_out) {
    return info(hStream, captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out,
                numDependencies_out);
}
CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                           cuuint64_t* id_out, CUgraph* graph_out,
                                           const CUgraphNode** dependencies_out,
                                           size_t* numDependencies_out) {
    return info(hStream, captureStatus_out, id_out, graph_out, dependencies_out, nullptr,
                numDependencies_out);
}
#undef cuStreamGetCaptureInfo
extern "C" CUresult cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                           cuuint64_t* id_out) {
    return info(hStream, captureStatus_out, id_out, nullptr, nullptr, nullptr, nullptr);
}

CUresult CUDAAPI cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode* dependencies,
                                                      const CUgraphEdgeData* dependencyData,
                                                      size_t numDependencies, unsigned int flags) {
    GPUKERNEL_CURRENT(connection);
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES) return CUDA_ERROR_INVALID_VALUE;
    LockedGraphs graphs;
    Capture* capture = state().find(*connection, hStream);
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    std::vector<Edge> edges;
    if (CUresult error =
            edges_of(graphs, *capture->graph, dependencies, dependencyData, numDependencies, edges);
        error != CUDA_SUCCESS)
        return error;
    std::vector<Edge>& last = capture->streams[hStream];
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) last.clear();
    join(last, edges);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode* dependencies,
                                                   size_t numDependencies, unsigned int flags) {
    return cuStreamUpdateCaptureDependencies_v2(hStream, dependencies, nullptr, numDependencies, flags);
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, thread_mode);
    return CUDA_SUCCESS;
}
