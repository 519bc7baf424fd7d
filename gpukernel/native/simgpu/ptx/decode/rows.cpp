// Rows of multiply-adds: most are of a shape that a handler of its own does with fewer loads and stores than
// one that looks at every operation.
#include <algorithm>
#include <map>
#include <set>

#include "simgpu/ptx/decode/decoder.h"

namespace gpukernel::simgpu::ptx {
namespace {

constexpr size_t kWorthIt = 3;  // operations; fewer stay with their neighbours
constexpr size_t kLongest = 255;
constexpr size_t kInSight = 512;  // operations that are put into another order together

// The relation of an operation to the one before it.
bool same_factor_and_summand(const Op& op, const Op& next) {
    return next.b == op.b && next.c == op.c && op.dst != op.b && op.dst != op.c;
}
bool sums(const Op& op, const Op& next) {  // of products, each added to the last result; then another sum
    if (!op.fleeting) return next.fleeting;
    return next.c == op.dst && next.a != op.dst && next.b != op.dst;
}
bool polynomials(const Op& op, const Op& next) {  // each result times the same factor; then another one
    if (next.b != op.b || op.dst == op.b) return false;
    if (!op.fleeting) return next.fleeting;
    return next.a == op.dst && next.c != op.dst;
}
bool same_factor(const Op& op, const Op& next) { return next.b == op.b && op.dst != op.b; }

struct RowShape {
    const char* name;
    bool (*follows)(const Op& op, const Op& next);
    bool pairs = false;  // the handler does a pair of warps at once
};
// The first that fits a stretch is the best for it.
constexpr RowShape kShapes[] = {
    {" polynomials", polynomials, true},
    {" sums", sums, true},
    {" same b, c", same_factor_and_summand},
    {" same b", same_factor},
};
constexpr size_t kCount = std::size(kShapes);

struct Row {  // operations of one handler
    Handler usual = nullptr;
    Handler shaped[kCount] = {};
};

const Row* row_of(Handler handler) {
    static const auto rows = [] {
        std::vector<Row> out;
        for (const char* operands : {"", "b", "c", "bc"}) {
            const std::string key = std::string("fma.f32@") + operands;
            Row row{.usual = find_handler(key)};
            for (size_t s = 0; s < kCount; ++s) row.shaped[s] = find_handler(key + kShapes[s].name);
            if (row.usual) out.push_back(row);
        }
        return out;
    }();
    for (const Row& row : rows)
        if (row.usual == handler) return &row;
    return nullptr;
}

using Mentions = std::map<uint32_t, uint32_t>;  // of a register in the text, by its slot

bool is_register(uint32_t operand) { return !(operand & 1); }
bool only_read_by(const Op& next, const Op& op, const Mentions& mentions) {
    auto found = mentions.find(op.dst);
    return found != mentions.end() && found->second == 2 && (next.a == op.dst || next.c == op.dst);
}

// Which of `count` operations must come before each, and which goes on with its result, or `count`.
struct Order {
    std::vector<std::vector<size_t>> after;  // so many must come behind this one
    std::vector<size_t> waits;               // for so many
    std::vector<size_t> next;
};
Order order_of(const Op* ops, size_t count, const Mentions& mentions) {
    Order order{std::vector<std::vector<size_t>>(count), std::vector<size_t>(count),
                std::vector<size_t>(count, count)};
    std::map<uint32_t, size_t> written;
    std::map<uint32_t, std::vector<size_t>> read;
    for (size_t n = 0; n < count; ++n) {
        std::set<size_t> before;
        const Op& op = ops[n];
        for (uint32_t operand : {op.a, op.b, op.c}) {
            if (!is_register(operand)) continue;
            if (auto by = written.find(operand); by != written.end()) {
                before.insert(by->second);
                const Op& last = ops[by->second];
                if (only_read_by(op, last, mentions) && (op.c == last.dst || op.b == last.b))
                    order.next[by->second] = n;
            }
            read[operand].push_back(n);
        }
        if (auto by = written.find(op.dst); by != written.end()) before.insert(by->second);
        for (size_t reader : read[op.dst])
            if (reader != n) before.insert(reader);
        read[op.dst].clear();
        written[op.dst] = n;
        for (size_t one : before) order.after[one].push_back(n);
        order.waits[n] = before.size();
    }
    return order;
}

// Brings what goes on with a result right behind it wherever nothing stands in between.
void chain(Op* ops, size_t count, const Mentions& mentions) {
    Order order = order_of(ops, count, mentions);
    std::vector<Op> out;
    std::vector<bool> done(count);
    auto take = [&](size_t n) {
        done[n] = true;
        out.push_back(ops[n]);
        out.back().straight = ops[out.size() - 1].straight;  // of the place, not of the operation
        for (size_t next : order.after[n]) --order.waits[next];
    };
    for (size_t head = 0; head < count; ++head)
        for (size_t n = head; n < count && !done[n] && !order.waits[n]; n = order.next[n]) take(n);
    std::copy(out.begin(), out.end(), ops);
}

}  // namespace

// The `count` operations from `first` on are neighbours of one handler; nobody jumps behind the first.
void Decoder::row(Op* first, size_t count) {
    const Row* row = row_of(first->fn);
    if (!row) return;
    for (size_t n = 0; n < count; n += kInSight) chain(first + n, std::min(kInSight, count - n), mentions_);
    for (size_t n = 0; n < count; ++n)
        first[n].fleeting = n + 1 < count && only_read_by(first[n + 1], first[n], mentions_);
    Op *const end = first + count, *plain = first;  // those from `plain` to `at` are of no shape
    auto settle = [&](Op* from, Op* to) {
        for (; from < to; ++from) from->width = static_cast<uint16_t>(std::min<size_t>(to - from, kLongest));
    };
    for (Op* at = first; at < end;) {
        Op* to = at;
        size_t shape = 0;
        for (; shape < kCount; ++shape) {
            if (!row->shaped[shape]) continue;
            for (to = at; to + 1 < end && kShapes[shape].follows(to[0], to[1]);) ++to;
            if (static_cast<size_t>(++to - at) >= kWorthIt) break;
        }
        if (shape == kCount) {
            ++at;
            continue;
        }
        settle(plain, at);
        settle(at, to);
        for (; at < to; ++at) at->fn = row->shaped[shape], at->pairs = kShapes[shape].pairs;
        plain = at;
    }
    settle(plain, end);
}

}  // namespace gpukernel::simgpu::ptx
