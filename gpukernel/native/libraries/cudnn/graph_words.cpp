#include "libraries/cudnn/graph_words.h"

#include <charconv>
#include <functional>

namespace gpukernel::libraries::cudnn {

namespace {
constexpr uint64_t pair(uint64_t low, uint64_t high) { return (low & 0xffffffff) | high << 32; }
constexpr std::string_view HEAD = "{\"gpukernel\": 1, \"plan\": \"", TAIL = "\"}";
constexpr size_t DIGITS = 16;  // of a word, as a number to the base of 16

// The words of a text, of which there may be too few.
class Words {
  public:
    explicit Words(std::string_view digits) {
        if (digits.size() % DIGITS) failed_ = true;
        for (size_t at = 0; !failed_ && at < digits.size(); at += DIGITS) {
            uint64_t word = 0;
            const char *const from = digits.data() + at, *const end = from + DIGITS;
            if (std::from_chars(from, end, word, 16).ptr != end) failed_ = true;
            words_.push_back(word);
        }
    }
    uint64_t next() { return failed_ || at_ == words_.size() ? (failed_ = true, 0) : words_[at_++]; }
    // A number of things of which each has a word at least.
    uint64_t count(uint64_t words_each = 1) {
        const uint64_t value = next();
        if (value > (words_.size() - at_) / words_each) failed_ = true;
        return failed_ ? 0 : value;
    }
    std::vector<char> bytes(size_t count) {
        const size_t words = (count + 7) / 8;
        if (failed_ || words > words_.size() - at_) return failed_ = true, std::vector<char>();
        const auto* const from = reinterpret_cast<const char*>(words_.data() + at_);
        at_ += words;
        return {from, from + count};
    }
    bool failed() const { return failed_; }
    bool over() const { return !failed_ && at_ == words_.size(); }
    void fail() { failed_ = true; }

  private:
    std::vector<uint64_t> words_;
    size_t at_ = 0;
    bool failed_ = false;
};

Shared node_in(Words& in, const std::vector<Shared>& nodes) {
    auto node = std::make_shared<Node>();
    const uint64_t head = in.next();
    node->kind = static_cast<int>(head & 0xffffffff), node->final = true;
    if (node->kind < 0 || node->kind >= MOST_KINDS) in.fail();
    for (uint64_t left = head >> 32; left && !in.failed(); --left) {
        const uint64_t what = in.next();
        const auto name = static_cast<int>(what & 0xffffffff), type = static_cast<int>(what >> 32);
        const size_t bytes = attribute_bytes(type);
        const uint64_t count = in.next();
        if (!bytes || type == TYPE_HANDLE || type == TYPE_POINTER || count > MOST_GRAPH_WORDS) in.fail();
        if (in.failed()) break;
        if (type == TYPE_DESCRIPTOR) {
            std::vector<Shared> others;
            for (uint64_t i = 0; i < count && !in.failed(); ++i) {
                const uint64_t number = in.next();
                if (number >= nodes.size())
                    in.fail();
                else
                    others.push_back(nodes[number]);
            }
            node->set(name, std::move(others));
        } else {
            node->attributes[name] = {type, static_cast<int64_t>(count), in.bytes(count * bytes), {}};
        }
    }
    return node;
}
}  // namespace

bool write_graph(const Node& graph, std::vector<uint64_t>& words) {
    std::map<const Node*, uint64_t> numbers;
    std::vector<uint64_t> nodes;
    bool fine = true;
    std::function<uint64_t(const Node&, int)> add = [&](const Node& node, int depth) -> uint64_t {
        if (const auto it = numbers.find(&node); it != numbers.end()) return it->second;
        if (depth > 64 || nodes.size() > MOST_GRAPH_WORDS) return fine = false, 0;
        std::vector<uint64_t> own;
        uint64_t count = 0;
        for (const auto& [name, attribute] : node.attributes) {
            if (attribute.type == TYPE_HANDLE || name == GRAPH_ENGINES) continue;
            if (attribute.type == TYPE_POINTER) fine = false;
            ++count;
            own.push_back(pair(static_cast<uint64_t>(name), static_cast<uint64_t>(attribute.type)));
            own.push_back(static_cast<uint64_t>(attribute.count));
            for (const Shared& other : attribute.nodes) own.push_back(add(*other, depth + 1));
            const size_t at = own.size(), bytes = attribute.bytes.size();
            own.resize(at + (bytes + 7) / 8);
            if (bytes) std::memcpy(own.data() + at, attribute.bytes.data(), bytes);
        }
        nodes.push_back(pair(static_cast<uint64_t>(node.kind), count));
        nodes.insert(nodes.end(), own.begin(), own.end());
        const uint64_t number = numbers.size();
        return numbers[&node] = number;
    };
    add(graph, 0);
    words.push_back(numbers.size());
    words.insert(words.end(), nodes.begin(), nodes.end());
    return fine && words.size() <= MOST_GRAPH_WORDS;
}

std::string plan_text(const Node& graph, const Engine& engine) {
    std::vector<uint64_t> words{static_cast<uint64_t>(engine.index), engine.knobs.size()};
    for (const Knob& knob : engine.knobs)
        words.push_back(static_cast<uint64_t>(knob.type)), words.push_back(static_cast<uint64_t>(knob.value));
    if (!write_graph(graph, words)) return {};
    std::string text(HEAD);
    for (const uint64_t word : words) {
        char digits[DIGITS];
        const auto end = std::to_chars(digits, digits + DIGITS, word, 16).ptr;
        text.append(DIGITS - static_cast<size_t>(end - digits), '0').append(digits, end);
    }
    return text.append(TAIL);
}

bool read_plan_text(std::string_view text, Shared& graph, Engine& engine) {
    if (text.size() > MOST_PLAN_TEXT || !text.starts_with(HEAD) || !text.ends_with(TAIL) ||
        text.size() < HEAD.size() + TAIL.size())
        return false;
    Words in(text.substr(HEAD.size(), text.size() - HEAD.size() - TAIL.size()));
    engine.index = static_cast<int64_t>(in.next());
    for (uint64_t left = in.count(2); left; --left) {
        const auto type = static_cast<int32_t>(in.next());
        engine.knobs.push_back({type, static_cast<int64_t>(in.next())});
    }
    std::vector<Shared> nodes;
    for (uint64_t left = in.count(); left && !in.failed(); --left) nodes.push_back(node_in(in, nodes));
    if (!in.over() || nodes.empty() || nodes.back()->kind != OPERATION_GRAPH) return false;
    graph = nodes.back();
    return true;
}

}  // namespace gpukernel::libraries::cudnn
