// The descriptors of cuDNN's backend API, as (name, type, count, bytes): the same in the program and beside
// the simulated GPU.
//
// A descriptor's content is shared: whoever refers to it keeps it, whenever the program destroys its own.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libraries/cudnn/handle.h"

namespace gpukernel::libraries::cudnn {

struct Node;
using Shared = std::shared_ptr<Node>;

struct NodeAttribute {
    int type = 0;
    int64_t count = 0;
    std::vector<char> bytes;
    std::vector<Shared> nodes;  // instead of bytes, where they are descriptors
};

struct Node {
    int kind = 0;
    bool final = false;
    std::map<int, NodeAttribute> attributes;
    std::shared_ptr<const void> own;  // what the library beside the simulated GPU made of it

    const NodeAttribute* find(int name, int type = -1) const {
        const auto it = attributes.find(name);
        return it == attributes.end() || (type >= 0 && it->second.type != type) ? nullptr : &it->second;
    }
    // The elements, of `bytes` each; empty where the attribute is not set or of another size.
    template <class T>
    std::span<const T> values(int name) const {
        const NodeAttribute* const its = find(name);
        if (!its || attribute_bytes(its->type) != sizeof(T) || its->type == TYPE_DESCRIPTOR) return {};
        return {reinterpret_cast<const T*>(its->bytes.data()), static_cast<size_t>(its->count)};
    }
    template <class T>
    T value(int name, T otherwise) const {
        const auto all = values<T>(name);
        return all.empty() ? otherwise : all[0];
    }
    // A number that is given as a float or as a double.
    double number(int name, double otherwise) const;
    const Node* node(int name) const {
        const NodeAttribute* const its = find(name, TYPE_DESCRIPTOR);
        return its && !its->nodes.empty() ? its->nodes[0].get() : nullptr;
    }
    template <class T>
    void set(int name, int type, std::span<const T> values) {
        static_assert(std::is_trivially_copyable_v<T>);
        NodeAttribute& its = attributes[name];
        its = {type, static_cast<int64_t>(values.size()), {}, {}};
        its.bytes.resize(values.size_bytes());
        if (!values.empty()) std::memcpy(its.bytes.data(), values.data(), values.size_bytes());
    }
    void set(int name, std::vector<Shared> nodes) {
        const auto count = static_cast<int64_t>(nodes.size());
        attributes[name] = {TYPE_DESCRIPTOR, count, {}, std::move(nodes)};
    }
};

// How an operation graph is executed.
struct Knob {
    int32_t type;
    int64_t value;
};
struct Engine {
    int64_t index = 0, workspace = 0;
    std::vector<int32_t> numerical_notes, behavior_notes;
    std::vector<Knob> knobs;  // of a configuration
};

// A plan with its addresses; what a tensor by value has lies on the host.
struct Pack {
    struct Tensor {
        int64_t id;
        uint64_t address;
    };
    std::vector<Tensor> tensors;
    uint64_t workspace = 0;
};

// All tensors of a graph.
std::vector<const Node*> tensors_of(const Node& graph);
Shared make_engine(const Shared& graph, const Engine& engine);
Engine engine_of(const Node& config);        // with its knobs
const Shared* graph_of(const Node& config);  // nullptr where there is none
// The bytes from a tensor's first element to behind its last; false where its descriptor makes no sense.
bool span_of(const Node& tensor, uint64_t& bytes);

// --- what each side defines ---

// Whether a graph can be executed at all, and by how many engines.
int check_graph(Node& graph, Handle& handle, int64_t& engines);
int find_engines(const Node& graph, Handle& handle, int mode, std::vector<Engine>& found);
int describe_engine(const Node& graph, Handle& handle, Engine& engine);
int make_plan(Node& plan, const Node& graph, Handle& handle, const Engine& engine, int64_t& workspace);
int execute(Handle& handle, const Node& plan, const Pack& pack);

}  // namespace gpukernel::libraries::cudnn
