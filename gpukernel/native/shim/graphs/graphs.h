// CUDA graphs, which exist in this process only.  A graph is a list of nodes, each with its work and its
// dependencies. An executable graph is a copy in a topological order; a launch issues the calls of its nodes
// in that order on one stream.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "shim/graphs/memory.h"
#include "shim/library_call.h"
#include "shim/memory/memory_operations.h"
#include "shim/modules/launch.h"
#include "shim/process.h"

namespace gpukernel::shim {

struct Graph;

// --- the work of a node, one structure for each type of node ---

struct KernelWork {
    KernelCall call;
    bool named_kernel = false;      // by a CUkernel rather than a CUfunction
    std::vector<void*> parameters;  // pointers into the block, for cuGraphKernelNodeGetParams
    std::map<int, CUkernelNodeAttrValue> attributes;
};
struct CopyWork {
    CUDA_MEMCPY3D asked, resolved;  // as the caller described it; with unified addresses resolved
};
struct FillWork {
    CUDA_MEMSET_NODE_PARAMS params;
};
struct HostWork {
    CUhostFn function;
    void* data;
};
struct ChildWork {};  // the graph itself is the node's `child`
struct EmptyWork {};
struct WaitWork {
    CUevent event;
};
struct RecordWork {
    CUevent event;
};
struct AllocWork {
    std::shared_ptr<GraphAllocation> allocation;
    CUmemPoolProps pool;
    std::vector<CUmemAccessDesc> access;
};
struct FreeWork {
    std::shared_ptr<GraphAllocation> allocation;
};
struct MemoryWork {
    MemoryOperations operations;
};
struct LibraryWork {
    LibraryCall call;
};
// A conditional handle, whose value is the word at its address (conditions.cpp).
struct Condition {
    CUdeviceptr address = 0;
    Context* context = nullptr;
    unsigned value = 0;
    bool assigned = false;  // at each launch
    bool used = false;      // by a node
    uint64_t generation = 0;
    Condition() = default;
    Condition(const Condition&) = delete;
    ~Condition();
};
struct ConditionalWork {
    std::shared_ptr<Condition> condition;
    CUgraphConditionalNodeType type;
};
// In the order of CUgraphNodeType; the two kinds of semaphores, which are not supported, are left out.
using Work = std::variant<KernelWork, CopyWork, FillWork, HostWork, ChildWork, EmptyWork, WaitWork,
                          RecordWork, AllocWork, FreeWork, MemoryWork, ConditionalWork, LibraryWork>;
using SharedWork = std::shared_ptr<const Work>;  // immutable: a launch may be reading it

// --- graphs ---

struct Edge {
    struct Node* other;
    CUgraphEdgeData data;
};

struct Node {
    Graph* graph = nullptr;
    uint64_t number = 0;  // in order of creation
    SharedWork work;
    bool enabled = true;
    Context* context = nullptr;
    std::unique_ptr<Graph> child;
    std::vector<std::unique_ptr<Graph>> bodies;  // of a conditional node
    std::vector<CUgraph> body_handles;
    std::vector<Edge> before, after;
    const Node* origin = nullptr;  // in the graph that this one's graph was cloned from

    CUgraphNodeType type() const {
        if (std::holds_alternative<AllocWork>(*work)) return CU_GRAPH_NODE_TYPE_MEM_ALLOC;
        if (std::holds_alternative<FreeWork>(*work)) return CU_GRAPH_NODE_TYPE_MEM_FREE;
        if (std::holds_alternative<MemoryWork>(*work)) return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
        if (std::holds_alternative<ConditionalWork>(*work)) return CU_GRAPH_NODE_TYPE_CONDITIONAL;
        // As in CUDA, whose libraries launch kernels; this one's parameters are nobody's business.
        if (std::holds_alternative<LibraryWork>(*work)) return CU_GRAPH_NODE_TYPE_KERNEL;
        return static_cast<CUgraphNodeType>(work->index());
    }
};

struct UserObject {
    void* data;
    CUhostFn destroy;
    unsigned references;
};

struct Graph {
    std::list<std::unique_ptr<Node>> nodes;
    std::map<UserObject*, unsigned> objects;
    Node* owner = nullptr;          // of a child graph, or of a body
    const Graph* origin = nullptr;  // of a clone
    int captures = 0;               // that write into it
    bool moved = false;             // into the parent, where a child is a clone otherwise
    // Set where it, or a child graph, allocates or frees.  As in CUDA, such a graph cannot be cloned, loses
    // neither nodes nor edges, and has one executable at a time: CUDA_ERROR_NOT_SUPPORTED.
    std::shared_ptr<Arena> memory;
    std::map<CUgraphConditionalHandle, std::shared_ptr<Condition>> conditions;
    std::weak_ptr<struct LaunchOrder> instance;  // the one executable of a graph with conditional nodes
};

struct Step {
    SharedWork work;
    Node* node;
    bool enabled;
    std::vector<std::vector<Step>> bodies = {};
};
// Serialises the launches of one executable, whatever their streams.
struct LaunchOrder {
    std::mutex mutex;
    std::shared_ptr<Fence> fence;  // after the last launch
};

struct Executable {
    std::unique_ptr<Graph> graph;                  // a clone
    std::unordered_map<const Node*, Node*> nodes;  // of the graph it was made from, to those of the clone
    Context* context = nullptr;
    cuuint64_t flags = 0;
    std::shared_ptr<const std::vector<Step>> steps;  // flattened; replaced when a node changes
    std::vector<std::shared_ptr<Condition>> conditions;
    std::shared_ptr<LaunchMemory> memory;  // where some of them allocate or free
    const std::shared_ptr<LaunchOrder> order = std::make_shared<LaunchOrder>();
};

// --- the registry: everything that the one mutex of graphs and captures guards ---

class Graphs {
  public:
    std::unordered_set<const void*> graphs, nodes, executables, objects;  // valid handles

    Graph* find(CUgraph handle) { return living<Graph>(graphs, handle); }
    Node* find(CUgraphNode handle) { return living<Node>(nodes, handle); }
    Executable* find(CUgraphExec handle) { return living<Executable>(executables, handle); }
    UserObject* find(CUuserObject handle) { return living<UserObject>(objects, handle); }

    std::unique_ptr<Graph> make();
    Node* add(Graph& graph, SharedWork work, std::vector<Edge> before);
    void remove(Node& node);
    void end(std::unique_ptr<Graph> graph);
    // Copies nodes, edges, children and references to user objects; `map` takes each node to its copy.
    std::unique_ptr<Graph> clone(const Graph& graph, std::unordered_map<const Node*, Node*>* map);
    void release(UserObject& object, unsigned count);

    std::vector<std::pair<CUhostFn, void*>> endings;  // destructors of user objects, called without the mutex

  private:
    template <class T>
    static T* living(const std::unordered_set<const void*>& handles, const void* handle) {
        return handles.contains(handle) ? static_cast<T*>(const_cast<void*>(handle)) : nullptr;
    }
    uint64_t numbers_ = 0;
};

// Access to the registry, under its mutex.
class LockedGraphs {
  public:
    LockedGraphs();
    ~LockedGraphs();
    LockedGraphs(const LockedGraphs&) = delete;
    Graphs* operator->() const;

  private:
    std::unique_lock<std::mutex> lock_;
};

inline CUgraph handle(const Graph* graph) { return reinterpret_cast<CUgraph>(const_cast<Graph*>(graph)); }
inline CUgraphNode handle(const Node* node) { return reinterpret_cast<CUgraphNode>(const_cast<Node*>(node)); }

// Finds a topological order of the nodes; false where there is a cycle.
bool in_order(const Graph& graph, std::vector<Node*>& order);
bool is_before(const Node* node, const std::vector<Node*>& frontier);  // or in it

CUresult edges_of(LockedGraphs& graphs, const Graph& graph, const CUgraphNode* dependencies,
                  const CUgraphEdgeData* data, size_t count, std::vector<Edge>& edges);

// --- work from the caller's parameters; may query the worker, so without the mutex ---

CUresult make_work(const CUDA_KERNEL_NODE_PARAMS* params, SharedWork& work);
CUresult make_work(const CUDA_MEMCPY3D* params, SharedWork& work);
CUresult make_work(const CUDA_MEMSET_NODE_PARAMS* params, SharedWork& work);
CUresult make_work(const CUDA_HOST_NODE_PARAMS* params, SharedWork& work);
CUresult make_work(const CUDA_BATCH_MEM_OP_NODE_PARAMS* params, SharedWork& work);
SharedWork kernel_work(KernelCall call, bool named_kernel,
                       std::map<int, CUkernelNodeAttrValue> attributes = {});
// Of any type but child graphs and memory.
CUresult make_work(const CUgraphNodeParams* params, SharedWork& work);

// Memory, for a node of `graph` that follows `before`: reserves addresses at the worker, under the mutex.
CUresult check(const CUDA_MEM_ALLOC_NODE_PARAMS& params);
CUresult make_work(Graph& graph, const std::vector<Edge>& before, CUDA_MEM_ALLOC_NODE_PARAMS& params,
                   SharedWork& work);
CUresult make_work(Graph& graph, CUdeviceptr address, SharedWork& work);
void note_memory(Node& node);  // after a node was given such work
CUresult add_memory_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                         const CUgraphEdgeData* data, size_t count, CUgraphNodeParams& params);
// Finds what an executable's nodes do with memory, if anything; `wrong` is a node that frees what is not
// allocated.
CUresult plan_memory(const std::vector<Step>& steps, bool auto_free, std::shared_ptr<LaunchMemory>& memory,
                     const Node*& wrong);

// --- conditions.cpp ---

bool decides(const Graph& graph);  // has conditional nodes
CUresult add_conditional(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                         const CUgraphEdgeData* data, size_t count, CUDA_CONDITIONAL_NODE_PARAMS& params);
CUresult assign_conditions(const std::vector<std::shared_ptr<Condition>>& conditions, CUstream stream);
// Waits for the condition, and calls `run` with the number of a body, as often as the node says.
CUresult decide(const ConditionalWork& work, size_t bodies, CUstream stream,
                const std::function<CUresult(size_t)>& run);
void forget_conditions(Connection& connection);

// Replaces the work of the executable's copy of `node` by work of the same type.
CUresult exchange(CUgraphExec executable, CUgraphNode node, SharedWork work);
CUresult exchange_child(CUgraphExec executable, CUgraphNode node, CUgraph child);

// Captures a launch: the executable's graph becomes a child node.
std::optional<CUresult> captured_graph(Connection& connection, Executable& executable, LockedGraphs& graphs,
                                       CUstream stream);

}  // namespace gpukernel::shim
