// How operation graphs and plans leave the program: as data, with every question and every execution.
#include "libraries/client.h"
#include "libraries/cudnn/backend.h"
#include "libraries/cudnn/client.h"
#include "libraries/cudnn/graph_words.h"

namespace gpukernel::libraries::cudnn {

namespace {
using Text = std::vector<uint64_t>;

// What the worker answers: numbers, of which there may be too few.
class Answer {
  public:
    explicit Answer(std::vector<int64_t> words) : words_(std::move(words)) {}
    int64_t next() { return at_ < words_.size() ? words_[at_++] : (failed_ = true, 0); }
    bool failed() const { return failed_; }
    size_t count(size_t most) {
        const int64_t value = next();
        if (value < 0 || value > static_cast<int64_t>(most)) failed_ = true;
        return failed_ ? 0 : static_cast<size_t>(value);
    }

  private:
    std::vector<int64_t> words_;
    size_t at_ = 0;
    bool failed_ = false;
};

Engine engine_in(Answer& answer) {
    Engine engine;
    engine.index = answer.next(), engine.workspace = answer.next();
    for (auto* const notes : {&engine.numerical_notes, &engine.behavior_notes})
        for (size_t n = answer.count(MOST_NOTES); n; --n)
            notes->push_back(static_cast<int32_t>(answer.next()));
    for (size_t n = answer.count(MOST_KNOBS); n; --n) {
        const auto type = static_cast<int32_t>(answer.next());
        engine.knobs.push_back({type, answer.next()});
    }
    return engine;
}

// Asks about a graph, with numbers before it.
int question(const Node& graph, const Handle& handle, Function function, const char* name,
             std::initializer_list<int64_t> numbers, Text graph_words, std::vector<int64_t>& answer) {
    Text words{handle.name};
    for (const int64_t number : numbers) words.push_back(static_cast<uint64_t>(number));
    if (graph_words.empty() && !write_graph(graph, graph_words))
        return refused(name, "an operation graph that is so large, or has addresses,");
    words.insert(words.end(), graph_words.begin(), graph_words.end());
    return ask_words(handle, function, name, words, answer);
}

// A plan, as it is sent again with each execution.
struct Sent {
    Text words;
    std::map<int64_t, size_t> by_value;  // the bytes of what lies on the host, by the tensors' numbers
};

Text plan_words(const Node& graph, const Engine& engine, bool& fine) {
    Text words{static_cast<uint64_t>(engine.index), engine.knobs.size()};
    for (const Knob& knob : engine.knobs)
        words.push_back(static_cast<uint64_t>(knob.type)), words.push_back(static_cast<uint64_t>(knob.value));
    fine = write_graph(graph, words);
    return words;
}
}  // namespace

int check_graph(Node& graph, Handle& handle, int64_t& engines) {
    std::vector<int64_t> answer;
    const int status = question(graph, handle, GRAPH, "cudnnBackendFinalize", {}, {}, answer);
    if (status) return status;
    Answer in(std::move(answer));
    engines = in.next();
    return in.failed() ? INTERNAL_ERROR : SUCCESS;
}

int find_engines(const Node& graph, Handle& handle, int mode, std::vector<Engine>& found) {
    std::vector<int64_t> answer;
    const int status = question(graph, handle, HEURISTIC, "cudnnBackendFinalize", {mode}, {}, answer);
    if (status) return status;
    Answer in(std::move(answer));
    for (size_t n = in.count(MOST_CONFIGS); n && !in.failed(); --n) found.push_back(engine_in(in));
    return in.failed() ? INTERNAL_ERROR : SUCCESS;
}

int describe_engine(const Node& graph, Handle& handle, Engine& engine) {
    std::vector<int64_t> answer;
    const int status =
        question(graph, handle, ENGINE_NOTES, "cudnnBackendFinalize", {engine.index}, {}, answer);
    if (status) return status;
    Answer in(std::move(answer));
    engine = engine_in(in);
    return in.failed() ? INTERNAL_ERROR : SUCCESS;
}

int make_plan(Node& plan, const Node& graph, Handle& handle, const Engine& engine, int64_t& workspace) {
    auto sent = std::make_shared<Sent>();
    bool fine = true;
    sent->words = plan_words(graph, engine, fine);
    if (!fine || engine.knobs.size() > MOST_KNOBS)
        return refused("cudnnBackendFinalize", "an operation graph that is so large, or has addresses,");
    for (const Node* const tensor : tensors_of(graph)) {
        uint64_t bytes = 0;
        if (!tensor->value<char>(TENSOR_BY_VALUE, 0) || tensor->find(TENSOR_CONSTANT)) continue;
        if (!span_of(*tensor, bytes) || bytes > 256)
            return refused("cudnnBackendFinalize", "a tensor by value that is so large");
        sent->by_value[tensor->value<int64_t>(TENSOR_ID, 0)] = bytes;
    }
    std::vector<int64_t> answer;
    const int status = question(graph, handle, MAKE_PLAN, "cudnnBackendFinalize", {}, sent->words, answer);
    if (status) return status;
    Answer in(std::move(answer));
    workspace = in.next();
    plan.own = sent;
    return in.failed() ? INTERNAL_ERROR : SUCCESS;
}

int execute(Handle& handle, const Node& plan, const Pack& pack) {
    const auto& sent = *static_cast<const Sent*>(plan.own.get());
    const auto bytes = static_cast<uint64_t>(plan.value<int64_t>(PLAN_WORKSPACE, 0));
    if (pack.tensors.size() > MOST_TENSORS)
        return refused("cudnnBackendExecute", "a pack of so many tensors");
    Text words{handle.name, sent.words.size()};
    words.insert(words.end(), sent.words.begin(), sent.words.end());
    words.push_back(bytes ? pack.workspace : 0);
    words.push_back(bytes);
    words.push_back(pack.tensors.size());
    for (const Pack::Tensor& tensor : pack.tensors) {
        const auto it = sent.by_value.find(tensor.id);
        words.push_back(static_cast<uint64_t>(tensor.id));
        words.push_back(it == sent.by_value.end() ? 0 : it->second);
        if (it == sent.by_value.end()) {
            words.push_back(tensor.address);
        } else {
            if (!tensor.address) return BAD_PARAM;
            append(words, reinterpret_cast<const void*>(tensor.address), it->second);
        }
    }
    return queue_words(handle, EXECUTE, words);
}

}  // namespace gpukernel::libraries::cudnn
