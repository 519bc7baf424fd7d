#include <algorithm>
#include <cstring>

#include "worker/libraries/cudnn.h"

namespace gpukernel::worker {

using namespace libraries::cudnn;

namespace {
constexpr uint64_t MOST_NODES = 1024, MOST_ATTRIBUTES = 64, MOST_ELEMENTS = 4096;
constexpr size_t CONSTANT_BYTES = 16;  // of the widest type that any cuDNN has

template <class Function>
Function function(const MathLibrary& library, const char* name) {
    return reinterpret_cast<Function>(library.function(name));
}

// Kinds that describe what is computed; how, and where, is not part of a graph.
bool describes(int kind) {
    switch (kind) {
        case ENGINE:
        case ENGINE_CONFIG:
        case HEURISTICS:
        case PLAN:
        case KNOB_CHOICE:
        case KNOB_INFO:
        case VARIANT_PACK:
            return false;
        default:
            return kind >= 0 && kind < MOST_KINDS;
    }
}
}  // namespace

Backend::Backend(const MathLibrary& library)
    : create_(function<int (*)(int, void**)>(library, "cudnnBackendCreateDescriptor")),
      destroy_(function<int (*)(void*)>(library, "cudnnBackendDestroyDescriptor")),
      set_(function<int (*)(void*, int, int, int64_t, const void*)>(library, "cudnnBackendSetAttribute")),
      get_(function<int (*)(void*, int, int, int64_t, int64_t*, void*)>(library, "cudnnBackendGetAttribute")),
      finish_(function<int (*)(void*)>(library, "cudnnBackendFinalize")) {}

Backend::~Backend() {
    for (auto it = made_.rbegin(); it != made_.rend(); ++it) destroy_(*it);
}

int Backend::make(int kind, void*& descriptor) {
    if (!there()) return NOT_SUPPORTED;
    const int status = create_(kind, &descriptor);
    if (!status) made_.push_back(descriptor);
    return status;
}

int Graph::read_node(LibraryArguments& in, std::vector<void*>& nodes, bool last) {
    const uint64_t head = in.word(), attributes = head >> 32;
    const auto kind = static_cast<int>(head & 0xffffffff);
    // Before the last one a graph is part of an operation, and has no handle.
    if (in.failed() || !describes(kind) || attributes > MOST_ATTRIBUTES || (last && kind != OPERATION_GRAPH))
        return BAD_PARAM;
    void* node = nullptr;
    if (const int status = backend.make(kind, node)) return status;
    GraphTensor tensor;
    int64_t id = 0, extents[MOST_DIMENSIONS] = {}, strides[MOST_DIMENSIONS] = {}, element = 0;
    uint64_t rank = 0, steps = 0;
    char is_virtual = 0, by_value = 0;  // bytes of a program's, of which any may be there
    // A constant is where an address says, and the library reads as much as the tensor's type has.
    bool constant = false;
    char number[CONSTANT_BYTES] = {};
    const void* const place = number;
    for (uint64_t i = 0; i < attributes; ++i) {
        const uint64_t what = in.word(), count = in.word();
        const auto name = static_cast<int>(what & 0xffffffff), type = static_cast<int>(what >> 32);
        const size_t bytes = attribute_bytes(type);
        // Addresses and handles are no part of a graph.
        if (in.failed() || !bytes || count > MOST_ELEMENTS || type == TYPE_HANDLE || type == TYPE_POINTER)
            return BAD_PARAM;
        const void* elements;
        std::vector<void*> others;
        if (type == TYPE_DESCRIPTOR) {
            for (uint64_t k = 0; k < count; ++k) {
                const uint64_t number = in.word();
                if (in.failed() || number >= nodes.size()) return BAD_PARAM;
                others.push_back(nodes[number]);
            }
            elements = others.data();
        } else {
            elements = in.bytes(count * bytes);
            if (in.failed()) return BAD_PARAM;
        }
        if (kind == TENSOR && count) {
            const auto take = [&](auto& to, int wanted) {
                if (type == wanted) std::memcpy(&to, elements, sizeof to);
            };
            if (name == TENSOR_ID) take(id, TYPE_INT64);
            if (name == TENSOR_VIRTUAL) take(is_virtual, TYPE_BOOLEAN);
            if (name == TENSOR_BY_VALUE) take(by_value, TYPE_BOOLEAN);
            int32_t data = -1;
            if (name == TENSOR_TYPE)
                take(data, TYPE_DATA), element = static_cast<int64_t>(element_bytes(data));
            if ((name == TENSOR_DIMENSIONS || name == TENSOR_STRIDES) && type == TYPE_INT64) {
                if (count > MOST_DIMENSIONS) return BAD_PARAM;
                (name == TENSOR_DIMENSIONS ? rank : steps) = count;
                std::memcpy(name == TENSOR_DIMENSIONS ? extents : strides, elements, count * sizeof(int64_t));
            }
        }
        if (kind == TENSOR && name == TENSOR_CONSTANT) {
            if (type != TYPE_CHAR || !count || count > sizeof number) return BAD_PARAM;
            std::memcpy(number, elements, count);
            constant = true;
        }
        const int status = constant && name == TENSOR_CONSTANT
                               ? backend.set(node, name, TYPE_POINTER, 1, &place)
                               : backend.set(node, name, type, static_cast<int64_t>(count), elements);
        if (status) return status;
    }
    if (last) {
        void* const handle = in.handle();
        if (const int status = backend.set(node, GRAPH_HANDLE, TYPE_HANDLE, 1, &handle)) return status;
    }
    if (kind == TENSOR) {
        if (!rank || rank != steps) return BAD_PARAM;
        __int128 end = 1;
        for (uint64_t i = 0; i < rank; ++i) {
            if (extents[i] <= 0 || strides[i] < 0) return BAD_PARAM;
            end += static_cast<__int128>(extents[i] - 1) * strides[i];
            if (end >> 48) return BAD_PARAM;
        }
        // Types that are not known here have at least half a byte.
        tensor.bytes = static_cast<uint64_t>(element ? end * element : (end + 1) / 2);
        tensor.by_value = by_value != 0;
        tensor.outside = !is_virtual && !constant;
        // Of two with one number, in a graph and in one within it, the larger's bytes are looked at.
        if (const auto before = tensors.find(id); before != tensors.end()) {
            tensor.bytes = std::max(tensor.bytes, before->second.bytes);
            tensor.by_value = tensor.by_value && before->second.by_value;
            tensor.outside = tensor.outside || before->second.outside;
        }
        tensors[id] = tensor;
    }
    if (const int status = backend.finish(node)) return status;
    nodes.push_back(node);
    return SUCCESS;
}

int Graph::read(LibraryArguments& in) {
    if (!backend.there()) return NOT_SUPPORTED;
    const uint64_t count = in.word();
    if (in.failed() || !count || count > MOST_NODES) return BAD_PARAM;
    std::vector<void*> nodes;
    for (uint64_t i = 0; i < count; ++i)
        if (const int status = read_node(in, nodes, i + 1 == count)) return status;
    descriptor = nodes.back();
    return SUCCESS;
}

// Words: the engine's number, its knobs, the graph.
int read_plan(LibraryArguments& in, Plan& plan) {
    const auto index = in.number<int64_t>();
    const uint64_t count = in.word();
    if (in.failed() || count > MOST_KNOBS) return BAD_PARAM;
    std::vector<std::pair<int32_t, int64_t>> choices;
    for (uint64_t i = 0; i < count; ++i) {
        const auto type = in.number<int32_t>();
        choices.emplace_back(type, in.number<int64_t>());
    }
    if (const int status = plan.graph.read(in)) return status;
    Backend& backend = plan.graph.backend;
    void *engine = nullptr, *config = nullptr, *handle = in.handle();
    std::vector<void*> knobs;
    int status = backend.make(ENGINE, engine);
    if (!status) status = backend.set(engine, ENGINE_GRAPH, TYPE_DESCRIPTOR, 1, &plan.graph.descriptor);
    if (!status) status = backend.set(engine, ENGINE_INDEX, TYPE_INT64, 1, &index);
    if (!status) status = backend.finish(engine);
    for (auto& [type, value] : choices) {
        void* knob = nullptr;
        if (!status) status = backend.make(KNOB_CHOICE, knob);
        if (!status) status = backend.set(knob, KNOB_TYPE, TYPE_KNOB, 1, &type);
        if (!status) status = backend.set(knob, KNOB_VALUE, TYPE_INT64, 1, &value);
        if (!status) status = backend.finish(knob);
        knobs.push_back(knob);
    }
    if (!status) status = backend.make(ENGINE_CONFIG, config);
    if (!status) status = backend.set(config, CONFIG_ENGINE, TYPE_DESCRIPTOR, 1, &engine);
    if (!status && !knobs.empty())
        status = backend.set(config, CONFIG_KNOBS, TYPE_DESCRIPTOR, static_cast<int64_t>(knobs.size()),
                             knobs.data());
    if (!status) status = backend.finish(config);
    if (!status) status = backend.make(PLAN, plan.descriptor);
    if (!status) status = backend.set(plan.descriptor, PLAN_HANDLE, TYPE_HANDLE, 1, &handle);
    if (!status) status = backend.set(plan.descriptor, PLAN_CONFIG, TYPE_DESCRIPTOR, 1, &config);
    if (!status) status = backend.finish(plan.descriptor);
    int64_t got = 0;
    if (!status) status = backend.get(plan.descriptor, PLAN_WORKSPACE, TYPE_INT64, 1, got, &plan.workspace);
    return !status && plan.workspace < 0 ? static_cast<int>(INTERNAL_ERROR) : status;
}

}  // namespace gpukernel::worker
