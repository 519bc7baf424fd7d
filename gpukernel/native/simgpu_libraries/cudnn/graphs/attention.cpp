// Attention as one operation (since cuDNN 9.13), softmax and band masks (since 9.20) become the operations
// that frameworks put together before: what each computes is what cuDNN's open frontend computes without
// them.
#include "simgpu_libraries/cudnn/graphs/attention.h"

#include <limits>
#include <numeric>
#include <set>

#include "simgpu_libraries/cudnn/graphs/refusal.h"
#include "simgpu_libraries/cudnn/pointwise.h"

namespace gpukernel::simgpu_libraries::cudnn {

namespace {
constexpr size_t MOST_OPERATIONS = 512;
// cudnnPointwiseMode_t
constexpr int ADD = 0, MUL = 1, MAX = 3, DIV = 6, SUB = 9, EXP = 13, LOG = 15, EQUAL = 300, LESS = 304,
              NOT_GREATER = 305, SELECT = 601;
constexpr int TYPE_POINTWISE_MODE = 14, TYPE_REDUCTION = 18, TYPE_DISTRIBUTION = 29, SIZE_OF_RANK = 4;

using Extents = std::vector<int64_t>;

class Composer {
  public:
    explicit Composer(const Node& graph) {
        for (const Node* const tensor : tensors_of(graph))
            taken_.insert(tensor->value<int64_t>(TENSOR_ID, 0));
    }

    void take(const Shared& operation) {
        switch (operation->kind) {
            case OPERATION_ATTENTION:
                return attention(*operation);
            case OPERATION_ATTENTION_BACKWARD:
                return backward(*operation);
            case OPERATION_BAND_MASK:
                return band_mask(*operation);
            case OPERATION_SOFTMAX:
                only(*operation,
                     {SOFTMAX_X, SOFTMAX_Y, SOFTMAX_STATISTICS, SOFTMAX_LARGEST, SOFTMAX_SUM, SOFTMAX_SINK});
                return softmax(*operation, tensor(*operation, SOFTMAX_X), tensor(*operation, SOFTMAX_Y));
            default:
                add(operation);
        }
    }
    std::vector<Shared> operations;

  private:
    void add(Shared operation) {
        if (operations.size() == MOST_OPERATIONS) refuse("a graph of so many operations");
        operations.push_back(std::move(operation));
    }

    // --- tensors ---

    static Shared find(const Node& operation, int name) {
        const NodeAttribute* const its = operation.find(name, TYPE_DESCRIPTOR);
        if (!its) return nullptr;
        if (its->nodes.size() != 1) wrong();
        return its->nodes[0];
    }
    static Shared tensor(const Node& operation, int name) {
        Shared its = find(operation, name);
        if (!its || its->kind != TENSOR) wrong();
        return its;
    }
    // Of a tensor that has to have four dimensions.
    static Extents extents(const Node& tensor) {
        const auto its = tensor.values<int64_t>(TENSOR_DIMENSIONS);
        if (its.size() != SIZE_OF_RANK) refuse("attention without four dimensions");
        return {its.begin(), its.end()};
    }
    int64_t fresh() {
        while (!taken_.insert(--last_).second) continue;
        return last_;
    }
    static Shared described(int64_t id, const Extents& extents, const Extents& strides, int type) {
        auto made = std::make_shared<Node>();
        made->kind = TENSOR, made->final = true;
        made->set<int32_t>(TENSOR_TYPE, TYPE_DATA, {{type}});
        made->set<int64_t>(TENSOR_DIMENSIONS, TYPE_INT64, extents);
        made->set<int64_t>(TENSOR_STRIDES, TYPE_INT64, strides);
        made->set<int64_t>(TENSOR_ID, TYPE_INT64, {{id}});
        return made;
    }
    Shared between(const Extents& extents) {
        Extents strides(extents.size());
        int64_t step = 1;
        for (size_t i = extents.size(); i--; step *= extents[i]) strides[i] = step;
        const Shared made = described(fresh(), extents, strides, FLOAT);
        made->set<char>(TENSOR_VIRTUAL, TYPE_BOOLEAN, {{1}});
        return made;
    }
    Shared constant(float value) {
        const Shared made = described(fresh(), {1}, {1}, FLOAT);
        made->set<char>(TENSOR_BY_VALUE, TYPE_BOOLEAN, {{1}});
        const auto* const bytes = reinterpret_cast<const char*>(&value);
        made->set<char>(TENSOR_CONSTANT, TYPE_CHAR, {bytes, sizeof value});
        return made;
    }
    static Extents column(Extents extents) { return extents.back() = 1, extents; }

    // --- operations ---

    Shared operation(int kind, std::initializer_list<std::pair<int, Shared>> with) {
        auto made = std::make_shared<Node>();
        made->kind = kind, made->final = true;
        for (const auto& [name, node] : with)
            if (node) made->set(name, {node});
        add(made);
        return made;
    }
    static Shared how(int kind, int name, int type, int32_t value) {
        auto made = std::make_shared<Node>();
        made->kind = kind, made->final = true;
        made->set<int32_t>(name, type, {{value}});
        return made;
    }
    Shared pointwise(int mode, const Shared& x, const Shared& b, const Shared& y, const Shared& t = nullptr) {
        return operation(OPERATION_POINTWISE,
                         {{POINTWISE_DESCRIPTOR, how(POINTWISE, POINTWISE_MODE, TYPE_POINTWISE_MODE, mode)},
                          {POINTWISE_X, x},
                          {POINTWISE_B, b},
                          {POINTWISE_T, t},
                          {POINTWISE_Y, y}});
    }
    // The result of an operation upon elements, as x has them.
    Shared of(int mode, const Shared& x, const Shared& b = nullptr, const Shared& t = nullptr) {
        const auto extents = x->values<int64_t>(TENSOR_DIMENSIONS);
        Shared y = between({extents.begin(), extents.end()});
        pointwise(mode, x, b, y, t);
        return y;
    }
    Shared index(const Shared& x, int64_t axis) {
        const auto extents = x->values<int64_t>(TENSOR_DIMENSIONS);
        Shared y = between({extents.begin(), extents.end()});
        Shared about = how(POINTWISE, POINTWISE_MODE, TYPE_POINTWISE_MODE, Pointwise::INDEX);
        about->set<int64_t>(POINTWISE_AXIS, TYPE_INT64, {{axis}});
        operation(OPERATION_POINTWISE, {{POINTWISE_DESCRIPTOR, about}, {POINTWISE_X, x}, {POINTWISE_Y, y}});
        return y;
    }
    void reduction(Reduction operator_, const Shared& x, const Shared& y) {
        operation(OPERATION_REDUCTION,
                  {{REDUCTION_DESCRIPTOR, how(REDUCTION, REDUCTION_OPERATOR, TYPE_REDUCTION, operator_)},
                   {REDUCTION_X, x},
                   {REDUCTION_Y, y}});
    }
    // C = A B; `m` and `k` are how many rows and terms each batch has.
    void product(const Shared& a, const Shared& b, const Shared& c, const Shared& m = nullptr,
                 const Shared& k = nullptr) {
        operation(OPERATION_MATMUL, {{MATMUL_DESCRIPTOR, how(MATMUL, MATMUL_COMPUTE, TYPE_DATA, FLOAT)},
                                     {MATMUL_A, a},
                                     {MATMUL_B, b},
                                     {MATMUL_C, c},
                                     {MATMUL_M, m},
                                     {MATMUL_K, k}});
    }
    // The same tensor with its last two dimensions in the other order.
    Shared transposed(const Shared& x) {
        Extents extents = Composer::extents(*x);
        const auto lying = x->values<int64_t>(TENSOR_STRIDES);
        if (lying.size() != SIZE_OF_RANK) wrong();
        Extents strides(lying.begin(), lying.end());
        std::swap(extents[2], extents[3]), std::swap(strides[2], strides[3]);
        const Shared y = described(fresh(), extents, strides, FLOAT);
        y->set<char>(TENSOR_VIRTUAL, TYPE_BOOLEAN, {{1}});
        operation(OPERATION_RESHAPE, {{RESHAPE_X, x}, {RESHAPE_Y, y}});
        return y;
    }

    // --- what is put together ---

    // The largest element of each row is taken off first.  Rows of which nothing is left are 0, and the
    // logarithm of their sum is -infinity.
    void softmax(const Node& its, const Shared& x, const Shared& y) {
        const auto all = x->values<int64_t>(TENSOR_DIMENSIONS);
        if (all.empty()) wrong();
        const Extents rows = column({all.begin(), all.end()});
        const Shared largest = find(its, SOFTMAX_LARGEST), sum = find(its, SOFTMAX_SUM),
                     sink = find(its, SOFTMAX_SINK), statistics = find(its, SOFTMAX_STATISTICS);
        if (sink && (largest || sum))
            refuse("softmax with a sink that tells its largest elements or its sums");
        Shared most = largest ? largest : between(rows), total = sum ? sum : between(rows);
        reduction(R_MAX, x, most);
        if (sink) most = of(MAX, most, sink);
        most = of(MAX, most, constant(std::numeric_limits<float>::lowest()));
        const Shared powers = of(EXP, of(SUB, x, most));
        reduction(R_ADD, powers, total);
        if (sink) {
            const Shared less = between(rows);
            pointwise(SUB, sink, most, less);
            total = of(ADD, total, of(EXP, less));
        }
        pointwise(DIV, powers, of(MAX, total, constant(std::numeric_limits<float>::min())), y);
        if (statistics) pointwise(ADD, of(LOG, total), most, statistics);
    }

    // Keeps what lies on one side of a diagonal, which the lengths of each batch may shift.
    void band_mask(const Node& its) {
        only(its, {MASK_X, MASK_LENGTHS_KV, MASK_LENGTHS_Q, MASK_LEFT, MASK_SHIFT_RIGHT, MASK_B, MASK_Y,
                   MASK_COMPARISON});
        const Shared x = tensor(its, MASK_X), left = find(its, MASK_LEFT),
                     right = find(its, MASK_SHIFT_RIGHT), of_keys = find(its, MASK_LENGTHS_KV),
                     of_queries = find(its, MASK_LENGTHS_Q);
        const int comparison = its.value<int32_t>(MASK_COMPARISON, -1);
        if (comparison < EQUAL || comparison > NOT_GREATER || (left && right)) wrong();
        extents(*x);
        const Shared row = index(x, 2), column = index(x, 3);
        Shared one = left ? column : row;
        const auto move = [&](int mode, const Shared& by) {
            if (by) one = of(mode, one, by);
        };
        move(ADD, left ? left : of_keys), move(SUB, left ? of_keys : of_queries);
        move(ADD, left ? of_queries : right);
        pointwise(SELECT, x, tensor(its, MASK_B), tensor(its, MASK_Y),
                  of(comparison, one, left ? row : column));
    }

    // x with `otherwise` in the columns that a batch does not have.
    Shared within(const Shared& x, const Shared& of_keys, float otherwise) {
        return of_keys ? of(SELECT, x, constant(otherwise), of(LESS, index(x, 3), of_keys)) : x;
    }

    void attention(const Node& its) {
        only(its, {ATTENTION_Q, ATTENTION_K, ATTENTION_V, ATTENTION_O, ATTENTION_STATISTICS, ATTENTION_SCALE,
                   ATTENTION_LENGTHS_Q, ATTENTION_LENGTHS_KV, ATTENTION_GRAPH, ATTENTION_GRAPH_INPUT,
                   ATTENTION_GRAPH_OUTPUT, ATTENTION_SOFTMAX, ATTENTION_SEED, ATTENTION_OFFSET,
                   ATTENTION_MASK_DRAWN, ATTENTION_DROPOUT, ATTENTION_UNFUSED});
        const Shared q = tensor(its, ATTENTION_Q), k = tensor(its, ATTENTION_K), v = tensor(its, ATTENTION_V),
                     o = tensor(its, ATTENTION_O), scale = find(its, ATTENTION_SCALE),
                     of_queries = find(its, ATTENTION_LENGTHS_Q), of_keys = find(its, ATTENTION_LENGTHS_KV);
        const Extents of_q = extents(*q), of_k = extents(*k), whole{of_q[0], of_q[1], of_q[2], of_k[2]};
        Shared scores = between(whole);
        Shared modified;  // what becomes of the scores, before softmax
        std::vector<Shared> modifies;
        if (const Shared graph = find(its, ATTENTION_GRAPH)) {
            const NodeAttribute* const inside = graph->find(GRAPH_OPERATIONS, TYPE_DESCRIPTOR);
            if (graph->kind != OPERATION_GRAPH || !inside || inside->nodes.empty()) wrong();
            modifies = inside->nodes;
            scores = numbered(*graph, its.value<int64_t>(ATTENTION_GRAPH_INPUT, 0));
            modified = numbered(*graph, its.value<int64_t>(ATTENTION_GRAPH_OUTPUT, 0));
        }
        const Shared products = scale ? between(whole) : scores;
        product(q, transposed(k), products);
        if (scale) pointwise(MUL, products, scale, scores);
        for (const Shared& one : modifies) {
            if (one->kind == OPERATION_ATTENTION || one->kind == OPERATION_ATTENTION_BACKWARD)
                refuse("attention within attention");
            take(one);
        }
        const Shared seen = within(modified ? modified : scores, of_keys, -INFINITY);
        Shared weights = between(whole);
        const Node none;
        Shared about = find(its, ATTENTION_SOFTMAX);
        if (about && its.find(ATTENTION_STATISTICS)) wrong();
        if (about) {
            only(*about,
                 {SOFTMAX_X, SOFTMAX_Y, SOFTMAX_STATISTICS, SOFTMAX_LARGEST, SOFTMAX_SUM, SOFTMAX_SINK});
            if (about->kind != OPERATION_SOFTMAX) wrong();
        } else {
            about = std::make_shared<Node>();
            if (const Shared statistics = find(its, ATTENTION_STATISTICS))
                about->set(SOFTMAX_STATISTICS, {statistics});
        }
        softmax(*about, seen, weights);
        if (const double dropped = its.number(ATTENTION_DROPOUT, 0); dropped != 0)
            weights = drop(its, weights, dropped);
        product(weights, v, o, of_queries, of_keys);
    }

    // A tensor of the operations within a graph.
    static Shared numbered(const Node& graph, int64_t id) {
        for (const Node* const one : tensors_of(graph))
            if (one->value<int64_t>(TENSOR_ID, 0) == id) return std::make_shared<Node>(*one);
        wrong();
    }

    Shared drop(const Node& its, const Shared& weights, double dropped) {
        if (!(dropped > 0 && dropped < 1)) wrong();
        const Shared given = find(its, ATTENTION_MASK_DRAWN),
                     mask = given ? given : between(extents(*weights)), kept = between(extents(*weights));
        const Shared about = how(RNG, RNG_DISTRIBUTION, TYPE_DISTRIBUTION, 0);
        const double probability = 1 - dropped;
        about->set<double>(RNG_PROBABILITY, TYPE_DOUBLE, {{probability}});
        operation(OPERATION_RNG, {{OPERATION_RNG_DESCRIPTOR, about},
                                  {OPERATION_RNG_SEED, tensor(its, ATTENTION_SEED)},
                                  {OPERATION_RNG_OFFSET, tensor(its, ATTENTION_OFFSET)},
                                  {OPERATION_RNG_Y, mask}});
        const double larger = 1 / probability;
        pointwise(MUL, weights, mask, kept)->set<double>(POINTWISE_ALPHA1, TYPE_DOUBLE, {{larger}});
        return kept;
    }

    // What forward has left is the logarithm of each row's sum; everything else is computed again.
    void backward(const Node& its) {
        only(its,
             {BACKWARD_Q, BACKWARD_K, BACKWARD_V, BACKWARD_O, BACKWARD_STATISTICS, BACKWARD_SCALE,
              BACKWARD_LENGTHS_Q, BACKWARD_LENGTHS_KV, BACKWARD_DQ, BACKWARD_DK, BACKWARD_DV, BACKWARD_DO});
        const Shared q = tensor(its, BACKWARD_Q), k = tensor(its, BACKWARD_K), v = tensor(its, BACKWARD_V),
                     slopes = tensor(its, BACKWARD_DO), scale = find(its, BACKWARD_SCALE),
                     of_queries = find(its, BACKWARD_LENGTHS_Q), of_keys = find(its, BACKWARD_LENGTHS_KV);
        const Extents of_q = extents(*q), whole{of_q[0], of_q[1], of_q[2], extents(*k)[2]};
        const auto scaled = [&](const Shared& x) { return scale ? of(MUL, x, scale) : x; };
        const Shared products = between(whole), of_weights = between(whole);
        product(q, transposed(k), products);
        const Shared weights =
            within(of(EXP, of(SUB, scaled(products), tensor(its, BACKWARD_STATISTICS))), of_keys, 0);
        summed(transposed(weights), slopes, tensor(its, BACKWARD_DV), of_keys, of_queries);
        product(slopes, transposed(v), of_weights);
        const Shared together = between(column(extents(*slopes)));
        reduction(R_ADD, of(MUL, slopes, tensor(its, BACKWARD_O)), together);
        const Shared of_scores = scaled(of(MUL, of(SUB, of_weights, together), weights));
        product(of_scores, k, tensor(its, BACKWARD_DQ), of_queries, of_keys);
        summed(transposed(of_scores), q, tensor(its, BACKWARD_DK), of_keys, of_queries);
    }
    // A product whose heads are added up where several queries share one of the result's.
    void summed(const Shared& a, const Shared& b, const Shared& c, const Shared& m, const Shared& k) {
        const Extents left = extents(*a), right = extents(*b), result = extents(*c);
        if (result[1] == left[1]) return product(a, b, c, m, k);
        const Shared each = between({left[0], left[1], left[2], right[3]});
        product(a, b, each, m, k);
        reduction(R_ADD, each, c);
    }

    std::set<int64_t> taken_;  // numbers of tensors
    int64_t last_ = 0;
};
}  // namespace

std::vector<Shared> in_parts(const Node& graph) {
    Composer composer(graph);
    for (const Shared& one : graph.find(GRAPH_OPERATIONS)->nodes) composer.take(one);
    return std::move(composer.operations);
}

}  // namespace gpukernel::simgpu_libraries::cudnn
