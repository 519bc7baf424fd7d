// The backend API's functions: descriptors are made, filled, and finished.
#include "libraries/cudnn/backend.h"

#include <algorithm>
#include <mutex>
#include <set>

#include "libraries/cudnn/graph_words.h"

namespace gpukernel::libraries::cudnn {

namespace {
constexpr int64_t MOST_ELEMENTS = 4096;  // of an attribute

// What the program holds: its own reference.
struct Descriptor {
    Shared node;
};
struct Living {
    std::mutex mutex;
    std::set<void*> all;
};
Living& living() {
    static auto* const only = new Living;
    return *only;
}
Descriptor* descriptor_of(void* given) {
    std::lock_guard lock(living().mutex);
    return living().all.contains(given) ? static_cast<Descriptor*>(given) : nullptr;
}

Handle* handle_at(const Node& node, int name) {
    const auto given = node.values<void*>(name);
    return given.empty() ? nullptr : handle_of(given[0]);
}

// Attributes that may be asked for though nobody has set them: there are none.
bool may_be_absent(int name) {
    return name == CONFIG_KNOBS || name == ENGINE_KNOBS || name == ENGINE_NUMERICAL_NOTES ||
           name == ENGINE_BEHAVIOR_NOTES || name == HEURISTICS_RESULTS;
}

int finish_tensor(const Node& node) {
    uint64_t bytes;
    if (!node.find(TENSOR_TYPE, TYPE_DATA) || !node.find(TENSOR_ID, TYPE_INT64)) return BAD_PARAM;
    return span_of(node, bytes) ? SUCCESS : BAD_PARAM;
}

int finish_graph(Node& node) {
    const NodeAttribute* const operations = node.find(GRAPH_OPERATIONS, TYPE_DESCRIPTOR);
    if (!operations || operations->nodes.empty()) return BAD_PARAM;
    // Without a handle it is part of an operation, as what attention does with its scores, and looked at
    // with the graph around it.
    const auto given = node.values<void*>(GRAPH_HANDLE);
    if (given.empty() || !given[0]) return SUCCESS;
    Handle* const handle = handle_of(given[0]);
    if (!handle) return BAD_PARAM;
    int64_t engines = 0;
    const int status = check_graph(node, *handle, engines);
    if (!status) node.set<int64_t>(GRAPH_ENGINES, TYPE_INT64, {&engines, 1});
    return status;
}

const Shared* shared_at(const Node& node, int name, int kind) {
    const NodeAttribute* const its = node.find(name, TYPE_DESCRIPTOR);
    return its && its->nodes.size() == 1 && its->nodes[0]->kind == kind ? &its->nodes[0] : nullptr;
}

Shared make_config(const Shared& graph, const Engine& engine) {
    auto config = std::make_shared<Node>();
    config->kind = ENGINE_CONFIG, config->final = true;
    config->set(CONFIG_ENGINE, {make_engine(graph, engine)});
    config->set<int64_t>(CONFIG_WORKSPACE, TYPE_INT64, {&engine.workspace, 1});
    std::vector<Shared> knobs;
    for (const Knob& knob : engine.knobs) {
        knobs.push_back(std::make_shared<Node>());
        knobs.back()->kind = KNOB_CHOICE, knobs.back()->final = true;
        knobs.back()->set<int32_t>(KNOB_TYPE, TYPE_KNOB, {&knob.type, 1});
        knobs.back()->set<int64_t>(KNOB_VALUE, TYPE_INT64, {&knob.value, 1});
    }
    config->set(CONFIG_KNOBS, std::move(knobs));
    return config;
}

int finish_heuristics(Node& node) {
    const Shared* const graph = shared_at(node, HEURISTICS_GRAPH, OPERATION_GRAPH);
    Handle* const handle = graph ? handle_at(**graph, GRAPH_HANDLE) : nullptr;
    if (!handle) return BAD_PARAM;
    std::vector<Engine> found;
    if (const int status = find_engines(**graph, *handle, node.value<int32_t>(HEURISTICS_MODE, 0), found))
        return status;
    std::vector<Shared> configs;
    for (const Engine& engine : found) configs.push_back(make_config(*graph, engine));
    node.set(HEURISTICS_RESULTS, std::move(configs));
    return SUCCESS;
}

int finish_engine(Node& node) {
    const Shared* const graph = shared_at(node, ENGINE_GRAPH, OPERATION_GRAPH);
    Handle* const handle = graph ? handle_at(**graph, GRAPH_HANDLE) : nullptr;
    if (!handle || node.values<int64_t>(ENGINE_INDEX).empty()) return BAD_PARAM;
    Engine engine;
    engine.index = node.value<int64_t>(ENGINE_INDEX, 0);
    if (const int status = describe_engine(**graph, *handle, engine)) return status;
    node.set<int32_t>(ENGINE_NUMERICAL_NOTES, TYPE_NUMERICAL_NOTE, engine.numerical_notes);
    node.set<int32_t>(ENGINE_BEHAVIOR_NOTES, TYPE_BEHAVIOR_NOTE, engine.behavior_notes);
    return SUCCESS;
}

int finish_plan(Node& node) {
    if (const auto text = node.values<char>(PLAN_JSON); !text.empty()) {
        Shared graph;
        Engine engine;
        if (!read_plan_text({text.data(), text.size()}, graph, engine))
            return refused("cudnnBackendFinalize", "a plan from a text that another library has made");
        node.set(PLAN_CONFIG, {make_config(graph, engine)});
    }
    const Shared* const config = shared_at(node, PLAN_CONFIG, ENGINE_CONFIG);
    const Shared* const graph = config ? graph_of(**config) : nullptr;
    // A plan without a handle is made with its graph's.
    Handle* const handle = node.find(PLAN_HANDLE) ? handle_at(node, PLAN_HANDLE)
                           : graph                ? handle_at(**graph, GRAPH_HANDLE)
                                                  : nullptr;
    if (!handle || !graph) return BAD_PARAM;
    int64_t workspace = 0;
    const int status = make_plan(node, **graph, *handle, engine_of(**config), workspace);
    if (status) return status;
    node.set<int64_t>(PLAN_WORKSPACE, TYPE_INT64, {&workspace, 1});
    if (const std::string text = plan_text(**graph, engine_of(**config)); !text.empty())
        node.set<char>(PLAN_JSON, TYPE_CHAR, text);
    return SUCCESS;
}

// A tensor's constant is taken when it is set: its address would say nothing to a server.
int set_constant(Node& tensor, int type, int64_t count, const void* elements) {
    if (type != TYPE_POINTER || count != 1) return BAD_PARAM;
    const auto* const from = *static_cast<const char* const*>(elements);
    const size_t bytes = element_bytes(tensor.value<int32_t>(TENSOR_TYPE, -1));
    if (!from) return BAD_PARAM;
    if (!bytes) return refused("cudnnBackendSetAttribute", "a constant of that type, or before it has one,");
    tensor.set<char>(TENSOR_CONSTANT, TYPE_CHAR, {from, bytes});
    return SUCCESS;
}

int finish_pack(const Node& node) {
    if (node.find(PACK_OVERRIDE_IDS))
        return refused("cudnnBackendFinalize", "a variant pack that overrides shapes");
    return node.values<int64_t>(PACK_IDS).size() == node.values<uint64_t>(PACK_POINTERS).size() ? SUCCESS
                                                                                                : BAD_PARAM;
}
}  // namespace

double Node::number(int name, double otherwise) const {
    const NodeAttribute* const its = find(name);
    if (!its || !its->count) return otherwise;
    if (its->type == TYPE_FLOAT) return static_cast<double>(values<float>(name)[0]);
    return its->type == TYPE_DOUBLE ? values<double>(name)[0] : otherwise;
}

bool span_of(const Node& tensor, uint64_t& bytes) {
    const auto extents = tensor.values<int64_t>(TENSOR_DIMENSIONS),
               strides = tensor.values<int64_t>(TENSOR_STRIDES);
    const size_t element = element_bytes(tensor.value<int32_t>(TENSOR_TYPE, -1));
    if (extents.empty() || extents.size() != strides.size() || extents.size() > MOST_DIMENSIONS) return false;
    __int128 last = 0, volume = 1;
    for (size_t i = 0; i < extents.size(); ++i) {
        if (extents[i] <= 0 || strides[i] < 0) return false;
        last += static_cast<__int128>(extents[i] - 1) * strides[i];
        volume *= extents[i];
        if (last >> 48 || volume >> 48) return false;
    }
    bytes = static_cast<uint64_t>(last + 1) * std::max<size_t>(element, 1);
    return true;
}

std::vector<const Node*> tensors_of(const Node& graph) {
    std::set<const Node*> seen;
    std::vector<const Node*> found, open{&graph};
    while (!open.empty()) {
        const Node* const node = open.back();
        open.pop_back();
        if (!seen.insert(node).second) continue;
        if (node->kind == TENSOR) found.push_back(node);
        for (const auto& [name, attribute] : node->attributes)
            for (const Shared& other : attribute.nodes) open.push_back(other.get());
    }
    return found;
}

Shared make_engine(const Shared& graph, const Engine& engine) {
    auto made = std::make_shared<Node>();
    made->kind = ENGINE, made->final = true;
    made->set(ENGINE_GRAPH, {graph});
    made->set<int64_t>(ENGINE_INDEX, TYPE_INT64, {&engine.index, 1});
    made->set<int32_t>(ENGINE_NUMERICAL_NOTES, TYPE_NUMERICAL_NOTE, engine.numerical_notes);
    made->set<int32_t>(ENGINE_BEHAVIOR_NOTES, TYPE_BEHAVIOR_NOTE, engine.behavior_notes);
    return made;
}

const Shared* graph_of(const Node& config) {
    const Node* const engine = config.node(CONFIG_ENGINE);
    return engine && engine->kind == ENGINE ? shared_at(*engine, ENGINE_GRAPH, OPERATION_GRAPH) : nullptr;
}

Engine engine_of(const Node& config) {
    Engine engine;
    if (const Node* const its = config.node(CONFIG_ENGINE))
        engine.index = its->value<int64_t>(ENGINE_INDEX, 0);
    if (const NodeAttribute* const knobs = config.find(CONFIG_KNOBS, TYPE_DESCRIPTOR))
        for (const Shared& knob : knobs->nodes)
            engine.knobs.push_back({knob->value<int32_t>(KNOB_TYPE, 0), knob->value<int64_t>(KNOB_VALUE, 0)});
    return engine;
}

// --- the functions of the API ---

GPUKERNEL_EXPORT int cudnnBackendCreateDescriptor(int kind, void** descriptor) {
    if (!descriptor) return NULL_POINTER;
    *descriptor = nullptr;
    if (kind < 0 || kind >= MOST_KINDS) return NOT_SUPPORTED;
    auto* const made = new Descriptor{std::make_shared<Node>()};
    made->node->kind = kind;
    std::lock_guard lock(living().mutex);
    living().all.insert(made);
    *descriptor = made;
    return SUCCESS;
}

GPUKERNEL_EXPORT int cudnnBackendDestroyDescriptor(void* descriptor) {
    {
        std::lock_guard lock(living().mutex);
        if (!living().all.erase(descriptor)) return BAD_PARAM;
    }
    delete static_cast<Descriptor*>(descriptor);
    return SUCCESS;
}

GPUKERNEL_EXPORT int cudnnBackendInitialize(void* descriptor) {
    Descriptor* const its = descriptor_of(descriptor);
    if (!its) return BAD_PARAM;
    const int kind = its->node->kind;
    its->node = std::make_shared<Node>();
    its->node->kind = kind;
    return SUCCESS;
}

GPUKERNEL_EXPORT int cudnnBackendSetAttribute(void* descriptor, int name, int type, int64_t count,
                                              const void* elements) {
    Descriptor* const its = descriptor_of(descriptor);
    const auto most = name == PLAN_JSON ? static_cast<int64_t>(MOST_PLAN_TEXT) : MOST_ELEMENTS;
    if (!its || its->node->final || count < 0 || count > most || (count && !elements)) return BAD_PARAM;
    const size_t bytes = attribute_bytes(type);
    if (!bytes) return BAD_PARAM;
    if (type == TYPE_DESCRIPTOR) {
        std::vector<Shared> nodes;
        for (int64_t i = 0; i < count; ++i) {
            const Descriptor* const one = descriptor_of(static_cast<void* const*>(elements)[i]);
            if (!one) return BAD_PARAM;
            if (!one->node->final) return NOT_FINALIZED;
            nodes.push_back(one->node);
        }
        its->node->set(name, std::move(nodes));
        return SUCCESS;
    }
    if (its->node->kind == TENSOR && name == TENSOR_CONSTANT)
        return set_constant(*its->node, type, count, elements);
    its->node->set<char>(name, type,
                         {static_cast<const char*>(elements), static_cast<size_t>(count) * bytes});
    its->node->attributes[name].count = count;
    return SUCCESS;
}

GPUKERNEL_EXPORT int cudnnBackendFinalize(void* descriptor) {
    Descriptor* const its = descriptor_of(descriptor);
    if (!its) return BAD_PARAM;
    Node& node = *its->node;
    if (node.final) return SUCCESS;
    int status = SUCCESS;
    switch (node.kind) {
        case TENSOR:
            status = finish_tensor(node);
            break;
        case OPERATION_GRAPH:
            status = finish_graph(node);
            break;
        case HEURISTICS:
            status = finish_heuristics(node);
            break;
        case ENGINE:
            status = finish_engine(node);
            break;
        case ENGINE_CONFIG:
            status = graph_of(node) ? SUCCESS : BAD_PARAM;
            break;
        case PLAN:
            status = finish_plan(node);
            break;
        case VARIANT_PACK:
            status = finish_pack(node);
            break;
        default:
            break;
    }
    node.final = !status;
    return status;
}

GPUKERNEL_EXPORT int cudnnBackendGetAttribute(void* descriptor, int name, int type, int64_t requested,
                                              int64_t* count, void* elements) {
    const Descriptor* const its = descriptor_of(descriptor);
    if (!its || requested < 0) return BAD_PARAM;
    if (!its->node->final) return NOT_FINALIZED;
    const NodeAttribute* const found = its->node->find(name);
    if (!found && may_be_absent(name)) return count ? (*count = 0, SUCCESS) : BAD_PARAM;
    if (!found) {
        refused("cudnnBackendGetAttribute", ("the attribute " + std::to_string(name)).c_str());
        return NOT_SUPPORTED;
    }
    if (found->type != type) return BAD_PARAM;
    if (count) *count = found->count;
    if (!elements || !requested) return count ? SUCCESS : BAD_PARAM;
    const int64_t given = std::min(requested, found->count);
    if (type != TYPE_DESCRIPTOR) {
        const size_t bytes = static_cast<size_t>(given) * attribute_bytes(type);
        if (bytes) std::memcpy(elements, found->bytes.data(), bytes);
        return SUCCESS;
    }
    for (int64_t i = 0; i < given; ++i) {  // into descriptors that the program has made
        Descriptor* const to = descriptor_of(static_cast<void**>(elements)[i]);
        const Shared& from = found->nodes[static_cast<size_t>(i)];
        if (!to || to->node->kind != from->kind) return BAD_PARAM;
        to->node = from;
    }
    return SUCCESS;
}

namespace {
int execute_with(Handle* own, void* plan, void* pack) {
    const Descriptor *const what = descriptor_of(plan), *const where = descriptor_of(pack);
    if (!own || !what || !where || what->node->kind != PLAN || where->node->kind != VARIANT_PACK)
        return BAD_PARAM;
    if (!what->node->final || !where->node->final) return NOT_FINALIZED;
    const auto ids = where->node->values<int64_t>(PACK_IDS);
    const auto pointers = where->node->values<uint64_t>(PACK_POINTERS);
    Pack all;
    for (size_t i = 0; i < ids.size(); ++i) all.tensors.push_back({ids[i], pointers[i]});
    all.workspace = where->node->value<uint64_t>(PACK_WORKSPACE, 0);
    if (!all.workspace && what->node->value<int64_t>(PLAN_WORKSPACE, 0) > 0) return BAD_PARAM;
    return execute(*own, *what->node, all);
}

// Adds the execution to a graph: it is captured from a stream that nobody else has.
int add_to_graph(Handle* own, void* plan, void* pack, CUgraph graph) {
    auto* const create = driver_function<decltype(cuStreamCreate)>("cuStreamCreate");
    auto* const destroy = driver_function<decltype(cuStreamDestroy_v2)>("cuStreamDestroy_v2");
    auto* const begin = driver_function<decltype(cuStreamBeginCaptureToGraph)>("cuStreamBeginCaptureToGraph");
    auto* const end = driver_function<decltype(cuStreamEndCapture)>("cuStreamEndCapture");
    if (!own || !graph) return BAD_PARAM;
    if (!create || !destroy || !begin || !end) return NOT_SUPPORTED;
    Handle with_stream = *own;
    if (const CUresult error = create(&with_stream.stream, CU_STREAM_NON_BLOCKING)) return status_of(error);
    int status =
        status_of(begin(with_stream.stream, graph, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    if (!status) {
        status = execute_with(&with_stream, plan, pack);
        CUgraph same = nullptr;
        const CUresult error = end(with_stream.stream, &same);
        if (!status) status = status_of(error);
        own->captured = own->captured || with_stream.captured;
    }
    destroy(with_stream.stream);
    return status;
}
}  // namespace

GPUKERNEL_EXPORT int cudnnBackendExecute(void* handle, void* plan, void* pack) {
    return execute_with(handle_of(handle), plan, pack);
}

GPUKERNEL_EXPORT int cudnnBackendPopulateCudaGraph(void* handle, void* plan, void* pack, CUgraph graph) {
    return add_to_graph(handle_of(handle), plan, pack, graph);
}
// The graph is one that the function above has filled: it has one node, in whose place another one is put.
GPUKERNEL_EXPORT int cudnnBackendUpdateCudaGraph(void* handle, void* plan, void* pack, CUgraph graph) {
    auto* const nodes = driver_function<decltype(cuGraphGetNodes)>("cuGraphGetNodes");
    auto* const destroy = driver_function<decltype(cuGraphDestroyNode)>("cuGraphDestroyNode");
    if (!nodes || !destroy) return NOT_SUPPORTED;
    size_t count = 2;
    CUgraphNode before[2];
    if (const CUresult error = nodes(graph, before, &count)) return status_of(error);
    if (count != 1) return BAD_PARAM;
    if (const int status = add_to_graph(handle_of(handle), plan, pack, graph)) return status;
    return status_of(destroy(before[0]));
}

}  // namespace gpukernel::libraries::cudnn
