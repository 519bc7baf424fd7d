// The structure of graphs: creation, edges, clones, user objects, and their printing.
#include "shim/graphs/graphs.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <queue>

#include "libcuda/entry_points.h"

namespace gpukernel::shim {

namespace {
std::mutex graphs_mutex;
Graphs& the_graphs() {
    static Graphs* const graphs = new Graphs;  // threads may be inside at exit
    return *graphs;
}

bool same(const CUgraphEdgeData& a, const CUgraphEdgeData& b) { return !std::memcmp(&a, &b, sizeof a); }
}  // namespace

LockedGraphs::LockedGraphs() : lock_(graphs_mutex) {}
LockedGraphs::~LockedGraphs() {
    auto endings = std::move(the_graphs().endings);
    the_graphs().endings.clear();
    lock_.unlock();
    for (auto [function, data] : endings) function(data);
}
Graphs* LockedGraphs::operator->() const { return &the_graphs(); }

std::unique_ptr<Graph> Graphs::make() {
    auto graph = std::make_unique<Graph>();
    graphs.insert(graph.get());
    return graph;
}

Node* Graphs::add(Graph& graph, SharedWork work, std::vector<Edge> before) {
    Node* node = graph.nodes.emplace_back(std::make_unique<Node>()).get();
    node->graph = &graph;
    node->number = ++numbers_;
    node->work = std::move(work);
    node->context = context_stack().empty() ? nullptr : context_stack().back();
    node->before = std::move(before);
    for (const Edge& edge : node->before) edge.other->after.push_back({node, edge.data});
    nodes.insert(node);
    return node;
}

void Graphs::remove(Node& node) {
    auto drop = [&](std::vector<Edge>& edges) {
        std::erase_if(edges, [&](const Edge& edge) { return edge.other == &node; });
    };
    for (const Edge& edge : node.before) drop(edge.other->after);
    for (const Edge& edge : node.after) drop(edge.other->before);
    nodes.erase(&node);
    if (node.child) end(std::move(node.child));
    for (auto& body : node.bodies) end(std::move(body));
    node.graph->nodes.remove_if([&](const auto& each) { return each.get() == &node; });
}

void Graphs::end(std::unique_ptr<Graph> graph) {
    for (auto& node : graph->nodes) {
        nodes.erase(node.get());
        if (node->child) end(std::move(node->child));
        for (auto& body : node->bodies) end(std::move(body));
    }
    for (auto [object, count] : graph->objects) release(*object, count);
    graphs.erase(graph.get());
}

std::unique_ptr<Graph> Graphs::clone(const Graph& graph, std::unordered_map<const Node*, Node*>* map) {
    std::unique_ptr<Graph> copy = make();
    copy->origin = &graph;
    copy->memory = graph.memory;
    std::unordered_map<const Node*, Node*> here;
    for (const auto& node : graph.nodes) {
        Node* fresh = add(*copy, node->work, {});
        fresh->context = node->context;
        fresh->enabled = node->enabled;
        fresh->origin = node.get();
        if (node->child) {
            fresh->child = clone(*node->child, map);
            fresh->child->owner = fresh;
        }
        for (const auto& body : node->bodies) {
            fresh->bodies.push_back(clone(*body, map));
            fresh->bodies.back()->owner = fresh;
        }
        here[node.get()] = fresh;
    }
    for (const auto& node : graph.nodes)
        for (const Edge& edge : node->before) {
            here[node.get()]->before.push_back({here[edge.other], edge.data});
            here[edge.other]->after.push_back({here[node.get()], edge.data});
        }
    for (auto [object, count] : graph.objects) {
        object->references += count;
        copy->objects[object] = count;
    }
    if (map) map->insert(here.begin(), here.end());
    return copy;
}

void Graphs::release(UserObject& object, unsigned count) {
    object.references -= std::min(count, object.references);
    if (object.references) return;
    endings.emplace_back(object.destroy, object.data);
    objects.erase(&object);
    delete &object;
}

bool in_order(const Graph& graph, std::vector<Node*>& order) {
    // Of the ready nodes the oldest first, so that a captured graph runs in the order of its capture.
    auto younger = [](const Node* a, const Node* b) { return a->number > b->number; };
    std::priority_queue<Node*, std::vector<Node*>, decltype(younger)> ready(younger);
    std::unordered_map<const Node*, size_t> waits;
    for (const auto& node : graph.nodes)
        if (!(waits[node.get()] = node->before.size())) ready.push(node.get());
    order.clear();
    while (!ready.empty()) {
        Node* node = ready.top();
        ready.pop();
        order.push_back(node);
        for (const Edge& edge : node->after)
            if (!--waits[edge.other]) ready.push(edge.other);
    }
    return order.size() == graph.nodes.size();
}

bool is_before(const Node* node, const std::vector<Node*>& frontier) {
    std::vector<const Node*> left(frontier.begin(), frontier.end());
    std::unordered_set<const Node*> seen(left.begin(), left.end());
    while (!left.empty()) {
        const Node* at = left.back();
        left.pop_back();
        if (at == node) return true;
        for (const Edge& edge : at->before)
            if (seen.insert(edge.other).second) left.push_back(edge.other);
    }
    return false;
}

CUresult edges_of(LockedGraphs& graphs, const Graph& graph, const CUgraphNode* dependencies,
                  const CUgraphEdgeData* data, size_t count, std::vector<Edge>& edges) {
    if (count && !dependencies) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
        Node* node = graphs->find(dependencies[i]);
        if (!node || node->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
        for (const Edge& edge : edges)
            if (edge.other == node) return CUDA_ERROR_INVALID_VALUE;
        edges.push_back({node, data ? data[i] : CUgraphEdgeData{}});
    }
    return CUDA_SUCCESS;
}

}  // namespace gpukernel::shim

using namespace gpukernel::shim;

namespace {
// Programs query a list twice: with null for the length, then for as many items as fit; the rest is set to
// null.
template <class Fill>
CUresult list(size_t* count, size_t have, bool wanted, Fill fill) {
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    if (wanted)
        for (size_t i = 0; i < *count; ++i) fill(i, i < have);
    *count = wanted ? std::min(have, *count) : have;
    return CUDA_SUCCESS;
}

bool lossy(const std::vector<Edge>& edges) {
    return std::any_of(edges.begin(), edges.end(), [](const Edge& e) { return !same(e.data, {}); });
}

CUresult list_edges(const std::vector<Edge>& edges, CUgraphNode* nodes, CUgraphEdgeData* data,
                    size_t* count) {
    if (nodes && !data && lossy(edges)) return CUDA_ERROR_LOSSY_QUERY;
    return list(count, edges.size(), nodes, [&](size_t i, bool there) {
        nodes[i] = there ? handle(edges[i].other) : nullptr;
        if (data) data[i] = there ? edges[i].data : CUgraphEdgeData{};
    });
}
}  // namespace

CUresult CUDAAPI cuGraphCreate(CUgraph* phGraph, unsigned int flags) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!phGraph || flags) return CUDA_ERROR_INVALID_VALUE;
    LockedGraphs graphs;
    *phGraph = handle(graphs->make().release());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph hGraph) {
    {
        LockedGraphs graphs;
        Graph* graph = graphs->find(hGraph);
        if (!graph || graph->owner || graph->captures) return CUDA_ERROR_INVALID_VALUE;
        graphs->end(std::unique_ptr<Graph>(graph));
    }
    settle_graph_memory();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphClone(CUgraph* phGraphClone, CUgraph originalGraph) {
    LockedGraphs graphs;
    Graph* graph = graphs->find(originalGraph);
    if (!graph || !phGraphClone) return CUDA_ERROR_INVALID_VALUE;
    if (graph->memory || decides(*graph)) return CUDA_ERROR_NOT_SUPPORTED;
    *phGraphClone = handle(graphs->clone(*graph, nullptr).release());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphNodeFindInClone(CUgraphNode* phNode, CUgraphNode hOriginalNode,
                                        CUgraph hClonedGraph) {
    LockedGraphs graphs;
    Node* node = graphs->find(hOriginalNode);
    Graph* clone = graphs->find(hClonedGraph);
    if (!phNode || !node || !clone || clone->origin != node->graph) return CUDA_ERROR_INVALID_VALUE;
    for (const auto& each : clone->nodes)
        if (each->origin == node) {
            *phNode = handle(each.get());
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGraphDestroyNode(CUgraphNode hNode) {
    LockedGraphs graphs;
    Node* node = graphs->find(hNode);
    if (!node || node->graph->captures) return CUDA_ERROR_INVALID_VALUE;
    if (node->graph->memory) return CUDA_ERROR_NOT_SUPPORTED;
    graphs->remove(*node);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType* type) {
    LockedGraphs graphs;
    Node* node = graphs->find(hNode);
    if (!node || !type) return CUDA_ERROR_INVALID_VALUE;
    *type = node->type();
    return CUDA_SUCCESS;
}

// --- lists ---

CUresult CUDAAPI cuGraphGetNodes(CUgraph hGraph, CUgraphNode* nodes, size_t* numNodes) {
    LockedGraphs graphs;
    Graph* graph = graphs->find(hGraph);
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    auto next = graph->nodes.begin();
    return list(numNodes, graph->nodes.size(), nodes,
                [&](size_t i, bool there) { nodes[i] = there ? handle((next++)->get()) : nullptr; });
}

CUresult CUDAAPI cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode* rootNodes, size_t* numRootNodes) {
    LockedGraphs graphs;
    Graph* graph = graphs->find(hGraph);
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    std::vector<CUgraphNode> roots;
    for (const auto& node : graph->nodes)
        if (node->before.empty()) roots.push_back(handle(node.get()));
    return list(numRootNodes, roots.size(), rootNodes,
                [&](size_t i, bool there) { rootNodes[i] = there ? roots[i] : nullptr; });
}

CUresult CUDAAPI cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to,
                                    CUgraphEdgeData* edgeData, size_t* numEdges) {
    LockedGraphs graphs;
    Graph* graph = graphs->find(hGraph);
    if (!graph || !from != !to) return CUDA_ERROR_INVALID_VALUE;
    std::vector<std::pair<Edge, Node*>> edges;
    for (const auto& node : graph->nodes) {
        if (from && !edgeData && lossy(node->before)) return CUDA_ERROR_LOSSY_QUERY;
        for (const Edge& edge : node->before) edges.emplace_back(edge, node.get());
    }
    return list(numEdges, edges.size(), from, [&](size_t i, bool there) {
        from[i] = there ? handle(edges[i].first.other) : nullptr;
        to[i] = there ? handle(edges[i].second) : nullptr;
        if (edgeData) edgeData[i] = there ? edges[i].first.data : CUgraphEdgeData{};
    });
}
CUresult CUDAAPI cuGraphGetEdges(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to, size_t* numEdges) {
    return cuGraphGetEdges_v2(hGraph, from, to, nullptr, numEdges);
}

CUresult CUDAAPI cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode* dependencies,
                                               CUgraphEdgeData* edgeData, size_t* numDependencies) {
    LockedGraphs graphs;
    Node* node = graphs->find(hNode);
    return node ? list_edges(node->before, dependencies, edgeData, numDependencies)
                : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode* dependencies,
                                            size_t* numDependencies) {
    return cuGraphNodeGetDependencies_v2(hNode, dependencies, nullptr, numDependencies);
}
CUresult CUDAAPI cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode* dependentNodes,
                                                 CUgraphEdgeData* edgeData, size_t* numDependentNodes) {
    LockedGraphs graphs;
    Node* node = graphs->find(hNode);
    return node ? list_edges(node->after, dependentNodes, edgeData, numDependentNodes)
                : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode* dependentNodes,
                                              size_t* numDependentNodes) {
    return cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, nullptr, numDependentNodes);
}

// --- edges; a cycle is found when the graph is instantiated ---

namespace {
CUresult change_edges(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                      const CUgraphEdgeData* data, size_t count, bool add) {
    LockedGraphs graphs;
    Graph* graph = graphs->find(hGraph);
    if (!graph || (count && (!from || !to))) return CUDA_ERROR_INVALID_VALUE;
    if (!add && count && graph->memory) return CUDA_ERROR_NOT_SUPPORTED;
    auto edge_to = [](std::vector<Edge>& edges, const Node* other) {
        return std::find_if(edges.begin(), edges.end(), [&](const Edge& e) { return e.other == other; });
    };
    std::vector<std::pair<Node*, Node*>> pairs;
    for (size_t i = 0; i < count; ++i) {  // all or nothing
        Node *a = graphs->find(from[i]), *b = graphs->find(to[i]);
        if (!a || !b || a == b || a->graph != graph || b->graph != graph) return CUDA_ERROR_INVALID_VALUE;
        auto edge = edge_to(b->before, a);
        const bool again = std::find(pairs.begin(), pairs.end(), std::pair(a, b)) != pairs.end();
        const bool there = edge != b->before.end();
        if (again || there == add) return CUDA_ERROR_INVALID_VALUE;
        if (!add && !same(edge->data, data ? data[i] : CUgraphEdgeData{})) return CUDA_ERROR_INVALID_VALUE;
        pairs.emplace_back(a, b);
    }
    for (size_t i = 0; i < count; ++i) {
        auto [a, b] = pairs[i];
        if (add) {
            const CUgraphEdgeData kind = data ? data[i] : CUgraphEdgeData{};
            b->before.push_back({a, kind}), a->after.push_back({b, kind});
        } else {
            b->before.erase(edge_to(b->before, a)), a->after.erase(edge_to(a->after, b));
        }
    }
    return CUDA_SUCCESS;
}
}  // namespace

CUresult CUDAAPI cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                        size_t numDependencies) {
    return change_edges(hGraph, from, to, nullptr, numDependencies, true);
}
CUresult CUDAAPI cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                           const CUgraphEdgeData* edgeData, size_t numDependencies) {
    return change_edges(hGraph, from, to, edgeData, numDependencies, true);
}
CUresult CUDAAPI cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                           size_t numDependencies) {
    return change_edges(hGraph, from, to, nullptr, numDependencies, false);
}
CUresult CUDAAPI cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                              const CUgraphEdgeData* edgeData, size_t numDependencies) {
    return change_edges(hGraph, from, to, edgeData, numDependencies, false);
}

// --- user objects ---

CUresult CUDAAPI cuUserObjectCreate(CUuserObject* object_out, void* ptr, CUhostFn destroy,
                                    unsigned int initialRefcount, unsigned int flags) {
    if (!object_out || !destroy || !initialRefcount || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    LockedGraphs graphs;
    auto* object = new UserObject{ptr, destroy, initialRefcount};
    graphs->objects.insert(object);
    *object_out = reinterpret_cast<CUuserObject>(object);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuUserObjectRetain(CUuserObject object, unsigned int count) {
    LockedGraphs graphs;
    UserObject* found = graphs->find(object);
    if (!found || !count) return CUDA_ERROR_INVALID_VALUE;
    found->references += count;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuUserObjectRelease(CUuserObject object, unsigned int count) {
    LockedGraphs graphs;
    UserObject* found = graphs->find(object);
    if (!found || !count || count > found->references) return CUDA_ERROR_INVALID_VALUE;
    graphs->release(*found, count);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                         unsigned int flags) {
    LockedGraphs graphs;
    Graph* owner = graphs->find(graph);
    UserObject* found = graphs->find(object);
    if (!owner || !found || !count || (flags & ~CU_GRAPH_USER_OBJECT_MOVE)) return CUDA_ERROR_INVALID_VALUE;
    if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) found->references += count;
    owner->objects[found] += count;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count) {
    LockedGraphs graphs;
    Graph* owner = graphs->find(graph);
    UserObject* found = graphs->find(object);
    if (!owner || !found || !count) return CUDA_ERROR_INVALID_VALUE;
    auto kept = owner->objects.find(found);
    if (kept == owner->objects.end() || kept->second < count) return CUDA_ERROR_INVALID_VALUE;
    if (!(kept->second -= count)) owner->objects.erase(kept);
    graphs->release(*found, count);
    return CUDA_SUCCESS;
}

// --- printing ---

namespace {
void draw(FILE* file, const Graph& graph) {
    static const char* const kinds[] = {"kernel",
                                        "memcpy",
                                        "memset",
                                        "host",
                                        "graph",
                                        "empty",
                                        "wait",
                                        "record",
                                        "alloc",
                                        "free",
                                        "memory operations",
                                        "conditional"};
    for (const auto& node : graph.nodes) {
        const auto* kernel = std::get_if<KernelWork>(node->work.get());
        const auto* alloc = std::get_if<AllocWork>(node->work.get());
        const auto* free = std::get_if<FreeWork>(node->work.get());
        const std::string name = kernel ? kernel->call.layout->name : kinds[node->work->index()];
        std::fprintf(file, "    n%llu [label=\"%s", static_cast<unsigned long long>(node->number),
                     name.c_str());
        if (alloc || free)
            std::fprintf(file, " 0x%llx", (alloc ? alloc->allocation : free->allocation)->address);
        std::fprintf(file, "\"];\n");
        for (const Edge& edge : node->before)
            std::fprintf(file, "    n%llu -> n%llu;\n", static_cast<unsigned long long>(edge.other->number),
                         static_cast<unsigned long long>(node->number));
        if (node->child) {
            std::fprintf(file, "    subgraph cluster%llu {\n", static_cast<unsigned long long>(node->number));
            draw(file, *node->child);
            std::fprintf(file, "    }\n");
        }
        for (size_t i = 0; i < node->bodies.size(); ++i) {
            std::fprintf(file, "    subgraph cluster%llu_%zu {\n",
                         static_cast<unsigned long long>(node->number), i);
            draw(file, *node->bodies[i]);
            std::fprintf(file, "    }\n");
        }
    }
}
}  // namespace

CUresult CUDAAPI cuGraphDebugDotPrint(CUgraph hGraph, const char* path, unsigned int flags) {
    LockedGraphs graphs;
    Graph* graph = graphs->find(hGraph);
    if (!graph || !path) return CUDA_ERROR_INVALID_VALUE;
    FILE* file = std::fopen(path, "w");
    if (!file) return CUDA_ERROR_OPERATING_SYSTEM;
    std::fprintf(file, "digraph {\n");
    draw(file, *graph);
    std::fprintf(file, "}\n");
    return std::fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
