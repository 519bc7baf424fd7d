// Operation graphs as words: for the way to the worker, and for plans that a program keeps as text.
//
// A graph's words: the number of its nodes, then each node after those that it refers to; the graph itself is
// the last.  A node: its kind and the number of its attributes (32 bits each), then each attribute: its name
// and type (32 bits each), its count, and its elements, padded to whole words; for descriptors the number of
// each node.  Handles are left out: whoever reads it puts its own there.
#pragma once

#include <string>
#include <string_view>

#include "libraries/cudnn/backend.h"

namespace gpukernel::libraries::cudnn {

// Appends the graph's; false where it is too large, or has something that cannot travel.
bool write_graph(const Node& graph, std::vector<uint64_t>& words);

// A plan as text, a JSON object; empty where its graph cannot be written.
std::string plan_text(const Node& graph, const Engine& engine);
// False where the text is none that `plan_text` has made.
bool read_plan_text(std::string_view text, Shared& graph, Engine& engine);
constexpr size_t MOST_PLAN_TEXT = 1 << 20;  // bytes

}  // namespace gpukernel::libraries::cudnn
