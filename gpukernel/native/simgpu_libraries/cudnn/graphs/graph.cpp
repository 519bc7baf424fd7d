// Reads an operation graph, and runs it step by step.  What is not understood is refused by name, and nothing
// is left out: an attribute that none of the functions below knows is an error.
#include "simgpu_libraries/cudnn/graphs/graph.h"

#include <map>
#include <set>

#include "simgpu_libraries/cudnn/graphs/attention.h"
#include "simgpu_libraries/cudnn/graphs/refusal.h"

namespace gpukernel::simgpu_libraries::cudnn {

namespace {
constexpr int ALIGNMENT = 900, COMPUTE_POINTWISE = 1, NAN_POINTWISE = 2, COMPUTE_REDUCTION = 1601,
              DETERMINISTIC_REDUCTION = 1602;

void read_from_host(Slot& slot, uint64_t address) {
    Tensor one;
    one.type = slot.tensor.type, one.address = address;
    slot.constant = cudnn::get(one, 0);
    if (one.type == INT32) slot.whole = *reinterpret_cast<const int32_t*>(address);
    if (one.type == INT64) slot.whole = *reinterpret_cast<const int64_t*>(address);
}

class Reader {
  public:
    explicit Reader(Program& program) : program_(program) {}

    void read(const Node& graph) {
        for (const Shared& operation : in_parts(graph)) steps_.push_back(step_of(*operation));
        sort();
        fuse();
        pack_virtual();
        place_virtual();
    }

  private:
    size_t slot_of(const Node& operation, int name) {
        const Node* const node = operation.node(name);
        if (!node || node->kind != TENSOR) wrong();
        only(*node, {ALIGNMENT, TENSOR_TYPE, TENSOR_DIMENSIONS, TENSOR_STRIDES, TENSOR_ID, TENSOR_VIRTUAL,
                     TENSOR_BY_VALUE, TENSOR_REORDERING, TENSOR_VECTOR_COUNT, TENSOR_CONSTANT, 905});
        if (node->value<int64_t>(TENSOR_VECTOR_COUNT, 1) != 1) refuse("a tensor of vectors");
        if (node->value<int32_t>(TENSOR_REORDERING, 0)) refuse("a reordered tensor");
        Slot slot;
        slot.id = node->value<int64_t>(TENSOR_ID, 0);
        slot.tensor.type = node->value<int32_t>(TENSOR_TYPE, -1);
        slot.is_virtual = node->value<char>(TENSOR_VIRTUAL, 0);
        slot.by_value = node->value<char>(TENSOR_BY_VALUE, 0);
        const auto extents = node->values<int64_t>(TENSOR_DIMENSIONS),
                   strides = node->values<int64_t>(TENSOR_STRIDES);
        if (extents.empty() || extents.size() > MOST_DIMENSIONS || extents.size() != strides.size()) wrong();
        slot.tensor.rank = static_cast<int>(extents.size());
        std::copy(extents.begin(), extents.end(), slot.tensor.extent);
        std::copy(strides.begin(), strides.end(), slot.tensor.stride);
        if (!element_bytes(slot.tensor.type))
            refuse("the type " + std::to_string(slot.tensor.type) + " (cudnnDataType_t)");
        if (!slot.tensor.valid()) wrong();
        if (slot.by_value && slot.tensor.count() != 1) refuse("a tensor by value of several elements");
        if (const NodeAttribute* const its = node->find(TENSOR_CONSTANT)) {
            if (!slot.by_value || slot.is_virtual || its->bytes.size() != element_bytes(slot.tensor.type))
                wrong();
            read_from_host(slot, reinterpret_cast<uint64_t>(its->bytes.data()));
        }
        if (slot.is_virtual) slot.tensor.type = slot.tensor.type == DOUBLE ? DOUBLE : FLOAT;
        const auto [it, fresh] = numbers_.try_emplace(slot.id, program_.slots.size());
        if (fresh) {
            program_.slots.push_back(slot);
        } else {
            const Slot& before = program_.slots[it->second];
            if (before.is_virtual != slot.is_virtual || before.tensor.type != slot.tensor.type ||
                !before.tensor.same_extents(slot.tensor) ||
                !std::equal(slot.tensor.stride, slot.tensor.stride + slot.tensor.rank, before.tensor.stride))
                wrong();  // two tensors of one number
        }
        return it->second;
    }
    const Tensor& tensor(size_t slot) const { return program_.slots[slot].tensor; }

    Step step_of(const Node& operation) {
        switch (operation.kind) {
            case OPERATION_CONVOLUTION_FORWARD:
                return convolution_step(operation, Convolution::FORWARD, FORWARD_ALPHA,
                                        {FORWARD_X, FORWARD_W, FORWARD_Y});
            case OPERATION_CONVOLUTION_DATA:
                return convolution_step(operation, Convolution::TO_DATA, DATA_ALPHA,
                                        {DATA_DX, DATA_W, DATA_DY});
            case OPERATION_CONVOLUTION_FILTER:
                return convolution_step(operation, Convolution::TO_FILTER, FILTER_ALPHA,
                                        {FILTER_X, FILTER_DW, FILTER_DY});
            case OPERATION_POINTWISE:
                return pointwise_step(operation);
            case OPERATION_REDUCTION:
                return reduction(operation);
            case OPERATION_MATMUL:
                return product(operation);
            case OPERATION_RESHAPE:
                return view(operation);
            case OPERATION_RNG:
                return random(operation);
            default:
                refuse("an operation of kind " + std::to_string(operation.kind) +
                       " (cudnnBackendDescriptorType_t)");
        }
    }

    // `first` is the number of the attribute ALPHA; BETA and the convolution follow.
    Step convolution_step(const Node& operation, Convolution::Direction direction, int first,
                          const int (&names)[3]) {
        only(operation, {first, first + 1, first + 2, names[0], names[1], names[2]});
        const Node* const how = operation.node(first + 2);
        if (!how || how->kind != libraries::cudnn::CONVOLUTION) wrong();
        only(*how, {CONVOLUTION_COMPUTE, CONVOLUTION_MODE, CONVOLUTION_DILATIONS, CONVOLUTION_STRIDES,
                    CONVOLUTION_POST_PADDINGS, CONVOLUTION_PRE_PADDINGS, CONVOLUTION_SPATIAL_DIMS});
        Convolution c;
        c.direction = direction;
        c.alpha = operation.number(first, 1), c.beta = operation.number(first + 1, 0);
        c.flipped = how->value<int32_t>(CONVOLUTION_MODE, 1) == 0;
        const auto spatial = how->value<int64_t>(CONVOLUTION_SPATIAL_DIMS, 2);
        if (spatial < 1 || spatial > MOST_SPATIAL) refuse("a convolution of more than three dimensions");
        c.spatial = static_cast<int>(spatial);
        const auto numbers = [&](int name, int64_t* to, int64_t otherwise) {
            const auto given = how->values<int64_t>(name);
            if (!given.empty() && given.size() != static_cast<size_t>(spatial)) wrong();
            for (int i = 0; i < spatial; ++i)
                to[i] = given.empty() ? otherwise : given[static_cast<size_t>(i)];
        };
        numbers(CONVOLUTION_PRE_PADDINGS, c.before, 0), numbers(CONVOLUTION_POST_PADDINGS, c.after, 0);
        numbers(CONVOLUTION_STRIDES, c.stride, 1), numbers(CONVOLUTION_DILATIONS, c.dilation, 1);
        size_t slots[3];
        for (int i = 0; i < 3; ++i) slots[i] = slot_of(operation, names[i]);
        c.x = tensor(slots[0]), c.w = tensor(slots[1]), c.y = tensor(slots[2]);
        const char* why = "";
        if (const int status = check(c, why)) throw Refused{status, why};
        Step step{c, {}, 0, {1, 1}};
        const int output = direction == Convolution::FORWARD ? 2 : direction == Convolution::TO_DATA ? 0 : 1;
        for (int i = 0; i < 3; ++i)
            if (i == output)
                step.output = slots[i];
            else
                step.inputs.push_back(slots[i]);
        return step;
    }

    Step pointwise_step(const Node& operation) {
        only(operation, {POINTWISE_DESCRIPTOR, POINTWISE_X, POINTWISE_B, POINTWISE_Y, POINTWISE_ALPHA1,
                         POINTWISE_ALPHA2, POINTWISE_DX, POINTWISE_DY, POINTWISE_T});
        const Node* const how = operation.node(POINTWISE_DESCRIPTOR);
        if (!how || how->kind != POINTWISE) wrong();
        only(*how, {POINTWISE_MODE, COMPUTE_POINTWISE, NAN_POINTWISE, POINTWISE_RELU_LOWER,
                    POINTWISE_RELU_UPPER, POINTWISE_RELU_SLOPE, POINTWISE_ELU_ALPHA, POINTWISE_SOFTPLUS_BETA,
                    POINTWISE_SWISH_BETA, POINTWISE_AXIS});
        Pointwise op;
        op.mode = how->value<int32_t>(POINTWISE_MODE, -1);
        op.lower = how->number(POINTWISE_RELU_LOWER, 0);
        op.upper = how->number(POINTWISE_RELU_UPPER, INFINITY);
        op.slope = how->number(POINTWISE_RELU_SLOPE, 0);
        op.elu_alpha = how->number(POINTWISE_ELU_ALPHA, 1);
        op.softplus_beta = how->number(POINTWISE_SOFTPLUS_BETA, 1);
        op.swish_beta = how->number(POINTWISE_SWISH_BETA, 1);
        op.axis = how->value<int64_t>(POINTWISE_AXIS, -1);
        const int operands = op.operands();
        if (!operands) refuse("the mode " + std::to_string(op.mode) + " (cudnnPointwiseMode_t)");
        Step step{op, {}, 0, {1, 1}};
        step.alpha[0] = operation.number(POINTWISE_ALPHA1, 1),
        step.alpha[1] = operation.number(POINTWISE_ALPHA2, 1);
        if (op.backward()) {
            step.inputs = {slot_of(operation, POINTWISE_X), slot_of(operation, POINTWISE_DY)};
            step.output = slot_of(operation, POINTWISE_DX);
        } else {
            step.inputs.push_back(slot_of(operation, POINTWISE_X));
            if (operands > 1) step.inputs.push_back(slot_of(operation, POINTWISE_B));
            if (operands > 2) step.inputs.push_back(slot_of(operation, POINTWISE_T));
            step.output = slot_of(operation, POINTWISE_Y);
        }
        if (op.mode == Pointwise::INDEX && (op.axis < 0 || op.axis >= tensor(step.output).rank)) wrong();
        for (const size_t input : step.inputs)
            if (!program_.slots[input].by_value && !tensor(input).spreads_to(tensor(step.output)))
                refuse("an operand that does not spread over the result");
        return step;
    }

    Step reduction(const Node& operation) {
        only(operation, {REDUCTION_X, REDUCTION_Y, REDUCTION_DESCRIPTOR});
        const Node* const how = operation.node(REDUCTION_DESCRIPTOR);
        if (!how || how->kind != REDUCTION) wrong();
        only(*how, {REDUCTION_OPERATOR, COMPUTE_REDUCTION, DETERMINISTIC_REDUCTION});
        const int kind = how->value<int32_t>(REDUCTION_OPERATOR, -1);
        if (kind < R_ADD || kind > R_MUL_NO_ZEROS) refuse("that operator of a reduction");
        Step step{static_cast<Reduction>(kind), {slot_of(operation, REDUCTION_X)}, 0, {1, 1}};
        step.output = slot_of(operation, REDUCTION_Y);
        const Tensor &from = tensor(step.inputs[0]), &to = tensor(step.output);
        if (from.rank != to.rank) wrong();
        for (int i = 0; i < to.rank; ++i)
            if (from.extent[i] % to.extent[i]) wrong();
        return step;
    }

    Step product(const Node& operation) {
        only(operation, {MATMUL_A, MATMUL_B, MATMUL_C, MATMUL_DESCRIPTOR, MATMUL_M, MATMUL_N, MATMUL_K});
        const Node* const how = operation.node(MATMUL_DESCRIPTOR);
        if (!how || how->kind != MATMUL) wrong();
        only(*how, {MATMUL_COMPUTE, MATMUL_PADDING});
        Matmul p;
        p.padding = how->number(MATMUL_PADDING, 0);
        Step step{p, {slot_of(operation, MATMUL_A), slot_of(operation, MATMUL_B)}, 0, {1, 1}};
        p.a = tensor(step.inputs[0]), p.b = tensor(step.inputs[1]);
        constexpr int lengths[] = {MATMUL_M, MATMUL_N, MATMUL_K};
        for (size_t i = 0; i < 3; ++i) {
            if (!operation.node(lengths[i])) continue;
            step.inputs.push_back(slot_of(operation, lengths[i]));
            p.lengths[i] = tensor(step.inputs.back());
        }
        step.output = slot_of(operation, MATMUL_C);
        p.c = tensor(step.output);
        for (const size_t input : step.inputs)
            if (program_.slots[input].by_value) refuse("a matrix by value");
        const char* why = "";
        if (const int status = check(p, why)) throw Refused{status, why};
        step.what = p;
        return step;
    }

    // The same memory with other extents and strides, as a transposed matrix has: each element is copied.
    Step view(const Node& operation) {
        only(operation, {RESHAPE_X, RESHAPE_Y, RESHAPE_MODE});
        if (operation.value<int32_t>(RESHAPE_MODE, 0)) refuse("a reshape that moves elements");
        Step step{Pointwise{.mode = Pointwise::IDENTITY}, {slot_of(operation, RESHAPE_X)}, 0, {1, 1}};
        step.output = slot_of(operation, RESHAPE_Y), step.view = true;
        const Tensor &from = tensor(step.inputs[0]), &to = tensor(step.output);
        views_.insert(step.inputs[0]), views_.insert(step.output);
        for (const Tensor* one : {&from, &to})
            if (!one->lies_apart()) refuse("a reshape of a tensor that overlaps itself");
        if (program_.slots[step.inputs[0]].by_value || from.count() != to.count() ||
            from.bytes() / element_bytes(from.type) < to.bytes() / element_bytes(to.type))
            wrong();
        return step;
    }

    // Its inputs are the offset, and the seed where that is a tensor.
    Step random(const Node& operation) {
        only(operation,
             {OPERATION_RNG_Y, OPERATION_RNG_SEED, OPERATION_RNG_DESCRIPTOR, OPERATION_RNG_OFFSET});
        const Node* const how = operation.node(OPERATION_RNG_DESCRIPTOR);
        if (!how || how->kind != RNG) wrong();
        only(*how, {RNG_DISTRIBUTION, RNG_MEAN, RNG_DEVIATION, RNG_MOST, RNG_LEAST, RNG_PROBABILITY});
        Random r;
        r.distribution = how->value<int32_t>(RNG_DISTRIBUTION, Random::BERNOULLI);
        r.mean = how->number(RNG_MEAN, -1), r.deviation = how->number(RNG_DEVIATION, -1);
        r.most = how->number(RNG_MOST, -1), r.least = how->number(RNG_LEAST, -1);
        r.probability = how->number(RNG_PROBABILITY, -1);
        r.seed = operation.value<int64_t>(OPERATION_RNG_SEED, 0);
        r.seed_is_tensor = operation.node(OPERATION_RNG_SEED) != nullptr;
        if (check(r)) wrong();
        Step step{r, {slot_of(operation, OPERATION_RNG_OFFSET)}, 0, {1, 1}};
        if (r.seed_is_tensor) step.inputs.push_back(slot_of(operation, OPERATION_RNG_SEED));
        for (const size_t input : step.inputs)
            if (tensor(input).count() != 1 || (tensor(input).type != INT32 && tensor(input).type != INT64))
                wrong();
        step.output = slot_of(operation, OPERATION_RNG_Y);
        return step;
    }

    // A convolution followed by operations on the elements of its result alone: one step, which needs no
    // memory for what lies between.
    void fuse() {
        std::vector<Step>& steps = program_.steps;
        auto* const convolution = steps.empty() ? nullptr : std::get_if<Convolution>(&steps[0].what);
        if (!convolution || convolution->direction == Convolution::TO_FILTER ||
            steps.size() >= MOST_REGISTERS)
            return;
        const Slot& first = program_.slots[steps[0].output];
        if (steps.size() == 1 || (first.is_virtual && convolution->beta != 0)) return;
        for (size_t i = 1; i < steps.size(); ++i)
            if (const auto* const op = std::get_if<Pointwise>(&steps[i].what);
                !op || op->mode == Pointwise::INDEX || steps[i].view ||
                !tensor(steps[i].output).same_extents(first.tensor))
                return;
        for (size_t i = 1; i < steps.size(); ++i) program_.fused.push_back(steps[i]);
        steps.resize(1);
    }

    // How a virtual tensor lies is nobody's business, unless its memory is seen in another way, too:
    // frameworks give such strides as make it overlap itself.
    void pack_virtual() {
        for (size_t i = 0; i < program_.slots.size(); ++i) {
            Tensor& its = program_.slots[i].tensor;
            if (!program_.slots[i].is_virtual || views_.contains(i)) continue;
            for (int64_t k = its.rank - 1, step = 1; k >= 0; step *= its.extent[k--]) its.stride[k] = step;
        }
    }
    // A virtual tensor has its place from the step that makes it to the last one that reads it.
    void place_virtual() {
        if (!program_.fused.empty()) return;
        const size_t steps = program_.steps.size();
        std::vector<size_t> last(program_.slots.size());
        for (size_t i = 0; i < steps; ++i) {
            last[program_.steps[i].output] = i;
            for (const size_t input : program_.steps[i].inputs) last[input] = i;
        }
        std::map<uint64_t, uint64_t> taken;  // ends by beginnings
        for (size_t i = 0; i < steps; ++i) {
            Slot& made = program_.slots[program_.steps[i].output];
            if (made.is_virtual) {
                const uint64_t bytes = (made.tensor.bytes() + 255) / 256 * 256;
                for (const auto& [begin, end] : taken) {
                    if (made.offset + bytes <= begin) break;
                    made.offset = end;
                }
                taken[made.offset] = made.offset + bytes;
                program_.workspace = std::max(program_.workspace, made.offset + bytes);
                if (program_.workspace >> 40) refuse("a graph that needs so much memory");
            }
            for (size_t slot = 0; slot < last.size(); ++slot)
                if (last[slot] == i && program_.slots[slot].is_virtual)
                    taken.erase(program_.slots[slot].offset);
        }
    }
    // Each step after those whose results it reads.
    void sort() {
        std::set<size_t> made, results;
        for (const Step& step : steps_)
            if (!results.insert(step.output).second) wrong();
        while (!steps_.empty()) {
            const auto ready = std::find_if(steps_.begin(), steps_.end(), [&](const Step& step) {
                return std::all_of(step.inputs.begin(), step.inputs.end(), [&](size_t input) {
                    return !results.contains(input) || made.contains(input);
                });
            });
            if (ready == steps_.end()) wrong();
            made.insert(ready->output);
            program_.steps.push_back(std::move(*ready));
            steps_.erase(ready);
        }
        for (const Step& step : program_.steps)
            for (const size_t input : step.inputs)
                if (program_.slots[input].is_virtual && !results.contains(input)) wrong();
    }

    Program& program_;
    std::vector<Step> steps_;
    std::map<int64_t, size_t> numbers_;
    std::set<size_t> views_;  // slots whose memory is seen in two ways
};

// What has the factor 0 is not read, and may be nowhere; nor is what has indices.
ElementOperand operand_of(const Step& step, size_t number, const Slot& slot) {
    const double alpha = number < 2 ? step.alpha[number] : 1;
    if (alpha == 0 && !slot.is_virtual) return {slot.tensor, 0.0, 1};
    return {slot.tensor, slot.constant, alpha};
}
bool is_read(const Step& step, size_t input) {
    const auto* const op = std::get_if<Pointwise>(&step.what);
    return !op || (op->mode != Pointwise::INDEX && (input > 1 || step.alpha[input] != 0));
}

// The operations upon a convolution's result, with the tensors of this execution.
void add_stages(const Program& program, const std::vector<Slot>& slots, Convolution& c) {
    std::map<size_t, int> registers{{program.steps[0].output, 0}};
    c.stored = program.fused.empty() || !slots[program.steps[0].output].is_virtual;
    for (const Step& step : program.fused) {
        Convolution::Stage stage;
        stage.op = std::get<Pointwise>(step.what);
        for (size_t i = 0; i < step.inputs.size(); ++i) {
            const Slot& slot = slots[step.inputs[i]];
            Convolution::Input input{-1, operand_of(step, i, slot)};
            if (const auto it = registers.find(step.inputs[i]); it != registers.end()) input.reg = it->second;
            stage.inputs.push_back(input);
        }
        stage.reg = static_cast<int>(registers.size());
        registers[step.output] = stage.reg;
        stage.stored = !slots[step.output].is_virtual;
        stage.to = slots[step.output].tensor;
        c.stages.push_back(std::move(stage));
    }
}

WholeNumber whole_number(const Slot& slot) {
    return {slot.by_value ? std::optional(slot.whole) : std::nullopt, slot.tensor};
}
}  // namespace

int parse(const Node& graph, Program& program, std::string& what) {
    const NodeAttribute* const operations = graph.find(GRAPH_OPERATIONS, TYPE_DESCRIPTOR);
    if (graph.kind != OPERATION_GRAPH || !operations || operations->nodes.empty()) return BAD_PARAM;
    if (operations->nodes.size() > 64) return what = "a graph of more than 64 operations", NOT_SUPPORTED;
    try {
        Reader(program).read(graph);
        return SUCCESS;
    } catch (const Refused& refused) {
        return what = refused.what, refused.status;
    }
}

int run(const Context& context, const Program& program, const Pack& pack) {
    std::vector<Slot> slots = program.slots;
    for (Slot& slot : slots) {
        if (slot.is_virtual) {
            slot.tensor.address = pack.workspace + slot.offset;
            continue;
        }
        if (slot.constant) continue;
        const auto it = std::find_if(pack.tensors.begin(), pack.tensors.end(),
                                     [&](const Pack::Tensor& one) { return one.id == slot.id; });
        if (it == pack.tensors.end() || (slot.by_value && !it->address)) return BAD_PARAM;
        if (slot.by_value)
            read_from_host(slot, it->address);
        else
            slot.tensor.address = it->address;
    }
    for (const std::vector<Step>* steps : {&program.steps, &program.fused})
        for (const Step& step : *steps) {
            const auto nowhere = [&](size_t slot) {
                return !slots[slot].tensor.address && !slots[slot].is_virtual && !slots[slot].by_value;
            };
            if (nowhere(step.output)) return BAD_PARAM;
            for (size_t i = 0; i < step.inputs.size(); ++i)
                if (nowhere(step.inputs[i]) && is_read(step, i)) return BAD_PARAM;
        }
    for (const Step& step : program.steps) {
        int status = SUCCESS;
        const Tensor& to = slots[step.output].tensor;
        if (const auto* const convolution = std::get_if<Convolution>(&step.what)) {
            Convolution c = *convolution;
            const Tensor &one = slots[step.inputs[0]].tensor, &two = slots[step.inputs[1]].tensor;
            if (c.direction == Convolution::FORWARD)
                c.x = one, c.w = two, c.y = to;
            else if (c.direction == Convolution::TO_DATA)
                c.w = one, c.y = two, c.x = to;
            else
                c.x = one, c.y = two, c.w = to;
            add_stages(program, slots, c);
            status = convolve(context, c);
        } else if (const auto* const op = std::get_if<Pointwise>(&step.what)) {
            ElementOperand operands[3];
            for (size_t i = 0; i < step.inputs.size(); ++i) {
                const Slot& slot = slots[step.inputs[i]];
                operands[i] = operand_of(step, i, slot);
            }
            if (step.view) {
                operands[0].tensor = to;
                operands[0].tensor.type = slots[step.inputs[0]].tensor.type;
                operands[0].tensor.address = slots[step.inputs[0]].tensor.address;
            }
            status = pointwise(context, *op, operands, to);
        } else if (const auto* const matrices = std::get_if<Matmul>(&step.what)) {
            Matmul p = *matrices;
            p.a = slots[step.inputs[0]].tensor, p.b = slots[step.inputs[1]].tensor, p.c = to;
            size_t next = 2;
            for (auto& length : p.lengths)
                if (length) length = slots[step.inputs[next++]].tensor;
            status = multiply(context, p);
        } else if (const auto* const drawn = std::get_if<Random>(&step.what)) {
            const WholeNumber seed =
                drawn->seed_is_tensor ? whole_number(slots[step.inputs[1]]) : WholeNumber{drawn->seed, {}};
            status = draw(context, *drawn, seed, whole_number(slots[step.inputs[0]]), to);
        } else {
            status = reduce(context, std::get<Reduction>(step.what), slots[step.inputs[0]].tensor, to, 1, 0);
        }
        if (status) return status;
    }
    return SUCCESS;
}

}  // namespace gpukernel::simgpu_libraries::cudnn
