#include "simgpu_libraries/cudnn/pointwise.h"

#include <numbers>

namespace gpukernel::simgpu_libraries::cudnn {

namespace {
constexpr int64_t PIECE = 1 << 15;  // elements

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double normal_below(double x) { return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)); }
double gelu_tanh_slope(double x) {
    const double t = std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

enum Mode {
    ADD = 0,
    MUL,
    MIN,
    MAX,
    SQRT,
    ADD_SQUARE,
    DIV,
    MOD,
    POW,
    SUB,
    ABS,
    CEIL,
    COS,
    EXP,
    FLOOR,
    LOG,
    NEG,
    RSQRT,
    SIN,
    TAN,
    ERF,
    RECIPROCAL = 22,
    ATAN2,
    RELU = 100,
    TANH,
    SIGMOID,
    ELU,
    GELU,
    SOFTPLUS,
    SWISH,
    GELU_TANH,
    D_RELU = 200,
    D_TANH,
    D_SIGMOID,
    D_ELU,
    D_GELU,
    D_SOFTPLUS,
    D_SWISH,
    D_GELU_TANH,
    EQUAL = 300,
    UNEQUAL,
    GREATER,
    NOT_LESS,
    LESS,
    NOT_GREATER,
    AND = 400,
    OR,
    NOT,
    SELECT = 601,
};
}  // namespace

int Pointwise::operands() const {
    switch (mode) {
        case ADD:
        case MUL:
        case MIN:
        case MAX:
        case ADD_SQUARE:
        case DIV:
        case MOD:
        case POW:
        case SUB:
        case ATAN2:
        case EQUAL:
        case UNEQUAL:
        case GREATER:
        case NOT_LESS:
        case LESS:
        case NOT_GREATER:
        case AND:
        case OR:
            return 2;
        case SELECT:
            return 3;
        case NOT:
        case INDEX:
            return 1;
        default:
            if (backward() && mode <= D_GELU_TANH) return 2;
            return (mode >= SQRT && mode <= RECIPROCAL) || (mode >= RELU && mode <= GELU_TANH) ? 1 : 0;
    }
}

double Pointwise::operator()(double x, double b, double t) const {
    switch (mode) {
        case ADD:
            return x + b;
        case MUL:
            return x * b;
        case MIN:
            return std::isnan(x) || x < b ? x : b;
        case MAX:
            return std::isnan(x) || x > b ? x : b;
        case SQRT:
            return std::sqrt(x);
        case ADD_SQUARE:
            return x + b * b;
        case DIV:
            return x / b;
        case MOD:
            return std::fmod(x, b);
        case POW:
            return std::pow(x, b);
        case SUB:
            return x - b;
        case ABS:
            return std::fabs(x);
        case CEIL:
            return std::ceil(x);
        case COS:
            return std::cos(x);
        case EXP:
            return std::exp(x);
        case FLOOR:
            return std::floor(x);
        case LOG:
            return std::log(x);
        case NEG:
            return -x;
        case RSQRT:
            return 1 / std::sqrt(x);
        case SIN:
            return std::sin(x);
        case TAN:
            return std::tan(x);
        case ERF:
            return std::erf(x);
        case IDENTITY:
            return x;
        case RECIPROCAL:
            return 1 / x;
        case ATAN2:
            return std::atan2(x, b);
        case RELU:
            return std::isnan(x) ? x : x > lower ? std::fmin(x, upper) : lower + slope * (x - lower);
        case TANH:
            return std::tanh(x);
        case SIGMOID:
            return sigmoid(x);
        case ELU:
            return x > 0 ? x : elu_alpha * std::expm1(x);
        case GELU:
            return x * normal_below(x);
        case SOFTPLUS:
            return (std::fmax(softplus_beta * x, 0) + std::log1p(std::exp(-std::fabs(softplus_beta * x)))) /
                   softplus_beta;
        case SWISH:
            return x * sigmoid(swish_beta * x);
        case GELU_TANH:
            return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
        case D_RELU:
            return b * (x > lower ? (x < upper ? 1 : 0) : slope);
        case D_TANH:
            return b * (1 - std::tanh(x) * std::tanh(x));
        case D_SIGMOID:
            return b * sigmoid(x) * (1 - sigmoid(x));
        case D_ELU:
            return b * (x > 0 ? 1 : elu_alpha * std::exp(x));
        case D_GELU:
            return b * (normal_below(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi));
        case D_SOFTPLUS:
            return b * sigmoid(softplus_beta * x);
        case D_SWISH: {
            const double s = sigmoid(swish_beta * x);
            return b * (s + swish_beta * x * s * (1 - s));
        }
        case D_GELU_TANH:
            return b * gelu_tanh_slope(x);
        case EQUAL:
            return x == b;
        case UNEQUAL:
            return x != b;
        case GREATER:
            return x > b;
        case NOT_LESS:
            return x >= b;
        case LESS:
            return x < b;
        case NOT_GREATER:
            return x <= b;
        case AND:
            return x != 0 && b != 0;
        case OR:
            return x != 0 || b != 0;
        case NOT:
            return x == 0;
        case SELECT:
            return t != 0 ? x : b;
        default:
            return NAN;
    }
}

int pointwise(const Context& context, const Pointwise& op, const ElementOperand (&operands)[3],
              const Tensor& to) {
    struct Work {
        Pointwise op;
        ElementOperand x, b, t;
        Tensor to;
        int count;
    };
    // The axis is the only thing that is read of what has indices.
    const Work work{op,          operands[0], operands[1],
                    operands[2], to,          op.mode == Pointwise::INDEX ? 0 : op.operands()};
    return submit(context, parts(to.count(), PIECE), [work](uint64_t number, const Access& access) {
        const ElementOperand* const all[3] = {&work.x, &work.b, &work.t};
        const int64_t first = static_cast<int64_t>(number) * PIECE,
                      count = std::min(PIECE, work.to.count() - first);
        work.to.check(access, true, "y");
        const Tensor* tensors[4] = {&work.to};
        for (int i = 0; i < work.count; ++i)
            if (!all[i]->number)
                all[i]->tensor.check(access, false, "an operand"), tensors[1 + i] = &all[i]->tensor;
        Walk<4> walk(work.to, tensors, first);
        for (int64_t i = 0; i < count; ++i, walk.next()) {
            double value[3] = {};
            for (int k = 0; k < work.count; ++k)
                value[k] = all[k]->alpha *
                           (all[k]->number ? *all[k]->number : get(all[k]->tensor, walk.offset[1 + k]));
            put(work.to, walk.offset[0],
                work.op.mode == Pointwise::INDEX ? static_cast<double>(walk.index[work.op.axis])
                                                 : work.op(value[0], value[1], value[2]));
        }
    });
}

int reduce(const Context& context, int operation, const Tensor& x, const Tensor& to, double alpha,
           double beta) {
    // Of each result: the volume that is reduced into it, and how far apart two of these begin.
    Tensor inner = x, outer = x;
    for (int i = 0; i < x.rank; ++i) {
        inner.extent[i] = x.extent[i] / to.extent[i];
        outer.extent[i] = to.extent[i], outer.stride[i] = x.stride[i] * inner.extent[i];
    }
    const int64_t terms = inner.count(), width = std::max<int64_t>(PIECE / terms, 1);
    if (terms > MOST_REDUCED) return refused(context.name, "a reduction of so many elements into one");
    return submit(context, parts(to.count(), width), [=](uint64_t number, const Access& access) {
        const int64_t first = static_cast<int64_t>(number) * width,
                      count = std::min(width, to.count() - first);
        x.check(access, false, "x");
        to.check(access, true, "y");
        const Tensor* const both[2] = {&to, &outer};
        Walk<2> walk(to, both, first);
        for (int64_t i = 0; i < count; ++i, walk.next()) {
            const Tensor* const one[1] = {&x};
            Walk<1> along(inner, one, 0);
            double value = operation == R_MUL || operation == R_MUL_NO_ZEROS ? 1
                           : operation == R_MIN                              ? INFINITY
                           : operation == R_MAX                              ? -INFINITY
                                                                             : 0;
            for (int64_t k = 0; k < terms; ++k, along.next()) {
                const double term = get(x, walk.offset[1] + along.offset[0]);
                switch (operation) {
                    case R_MUL:
                        value *= term;
                        break;
                    case R_MUL_NO_ZEROS:
                        value *= term != 0 ? term : 1;
                        break;
                    case R_MIN:
                        value = std::isnan(term) || term < value ? term : value;
                        break;
                    case R_MAX:
                        value = std::isnan(term) || term > value ? term : value;
                        break;
                    case R_AMAX:
                        value = std::isnan(term) || std::fabs(term) > value ? std::fabs(term) : value;
                        break;
                    case R_NORM1:
                        value += std::fabs(term);
                        break;
                    case R_NORM2:
                        value += term * term;
                        break;
                    default:
                        value += term;
                        break;
                }
            }
            if (operation == R_AVG) value /= static_cast<double>(terms);
            if (operation == R_NORM2) value = std::sqrt(value);
            blend(to, walk.offset[0], value, alpha, beta);
        }
    });
}

}  // namespace gpukernel::simgpu_libraries::cudnn
