// Functions of single elements outside of the backend API, reductions, and softmax.
#include <vector>

#include "simgpu_libraries/cudnn/operations.h"
#include "simgpu_libraries/cudnn/pointwise.h"

namespace gpukernel::simgpu_libraries::cudnn {

namespace {
constexpr int64_t PIECE = 1 << 15;  // elements
constexpr int64_t MOST_SOFTMAX = 1 << 22;

// The activations by the numbers of cudnnActivationMode_t.
bool activation(const ActivationForm& form, Pointwise& op, bool backward) {
    enum { SIGMOID, RELU, TANH, CLIPPED, ELU, IDENTITY, SWISH };
    constexpr int to[] = {102, 100, 101, 100, 103, 21, 106};
    if (form.mode < SIGMOID || form.mode > SWISH || (backward && form.mode == IDENTITY)) return false;
    op.mode = to[form.mode] + (backward ? 100 : 0);
    op.upper = form.mode == CLIPPED ? form.coefficient : INFINITY;
    op.elu_alpha = form.coefficient, op.swish_beta = form.swish_beta;
    return true;
}

// to = alpha * function(elements of the others) + beta * to.
template <int COUNT, class Function>
int each(const Context& context, const Tensor (&from)[COUNT], const Tensor& to, double alpha, double beta,
         Function function) {
    for (const Tensor& tensor : from)
        if (!tensor.valid() || !tensor.spreads_to(to)) return BAD_PARAM;
    Room<Tensor> all(from, from + COUNT);
    return submit(context, parts(to.count(), PIECE), [=](uint64_t number, const Access& access) {
        const int64_t first = static_cast<int64_t>(number) * PIECE,
                      count = std::min(PIECE, to.count() - first);
        to.check(access, true, "the result");
        const Tensor* places[COUNT + 1] = {&to};
        for (int i = 0; i < COUNT; ++i) all[i].check(access, false, "an operand"), places[1 + i] = &all[i];
        Walk<COUNT + 1> walk(to, places, first);
        for (int64_t k = 0; k < count; ++k, walk.next()) {
            double values[COUNT];
            for (int i = 0; i < COUNT; ++i) values[i] = get(all[i], walk.offset[1 + i]);
            blend(to, walk.offset[0], function(values), alpha, beta);
        }
    });
}

// What a softmax sums over: the volume of one, and the volume of all of them.
bool softmax_volumes(const Tensor& x, int mode, Tensor& inner, Tensor& outer) {
    if (mode < 0 || mode > 1 || x.rank < 2) return false;
    inner = outer = x;
    for (int i = 0; i < x.rank; ++i) {
        const bool summed = mode == 0 ? i > 0 : i == 1;
        (summed ? outer : inner).extent[i] = 1;
    }
    return true;
}
}  // namespace

Tensor tensor_of(Layout layout, uint64_t address) {
    Tensor tensor;
    tensor.type = layout->type, tensor.rank = layout->rank, tensor.address = address;
    std::copy_n(layout->extent, MOST_DIMENSIONS, tensor.extent);
    std::copy_n(layout->stride, MOST_DIMENSIONS, tensor.stride);
    return tensor;
}
Tensor tensor_of(const FilterLayout* filter, uint64_t address) {
    Tensor tensor;
    tensor.type = filter->type, tensor.rank = filter->rank, tensor.address = address;
    std::copy_n(filter->extent, MOST_DIMENSIONS, tensor.extent);
    __int128 volume = 1;  // strides_of multiplies without looking
    for (int i = 0; i < filter->rank; ++i)
        if (filter->extent[i] > 0 && volume >> 44 == 0) volume *= filter->extent[i];
    if (volume >> 44 == 0)
        strides_of(*filter, tensor.stride);
    else
        tensor.rank = 0;  // which is not valid
    return tensor;
}

int transform(Context context, Scalar alpha, Layout x_layout, uint64_t x, Scalar beta, Layout y_layout,
              uint64_t y) {
    const Tensor to = tensor_of(y_layout, y);
    if (!to.valid()) return BAD_PARAM;
    return each(context, {tensor_of(x_layout, x)}, to, alpha, beta, [](const double* v) { return v[0]; });
}

int op_tensor(Context context, const TensorOperation* form, Scalar alpha1, Layout a_layout, uint64_t a,
              Scalar alpha2, Layout b_layout, uint64_t b, Scalar beta, Layout c_layout, uint64_t c) {
    enum { ADD, MUL, MIN, MAX, SQRT, NOT };
    const Tensor to = tensor_of(c_layout, c);
    if (!to.valid()) return BAD_PARAM;
    const int operation = form->operation;
    const double one = alpha1, two = alpha2;
    if (operation == SQRT || operation == NOT)
        return each(context, {tensor_of(a_layout, a)}, to, 1, beta, [=](const double* v) {
            return operation == SQRT ? std::sqrt(one * v[0]) : 1 - one * v[0];
        });
    return each(context, {tensor_of(a_layout, a), tensor_of(b_layout, b)}, to, 1, beta, [=](const double* v) {
        const double p = one * v[0], q = two * v[1];
        return operation == ADD   ? p + q
               : operation == MUL ? p * q
               : operation == MIN ? std::fmin(p, q)
                                  : std::fmax(p, q);
    });
}

int scale_tensor(Context context, Layout y_layout, uint64_t y, Scalar alpha) {
    const Tensor to = tensor_of(y_layout, y);
    if (!to.valid()) return BAD_PARAM;
    return each(context, {to}, to, alpha, 0, [](const double* v) { return v[0]; });
}

int set_tensor(Context context, Layout y_layout, uint64_t y, Scalar value) {
    const Tensor to = tensor_of(y_layout, y);
    if (!to.valid()) return BAD_PARAM;
    Tensor one = to;
    one.address = reinterpret_cast<uint64_t>(value.bytes());
    const double number = get(one, 0);
    return submit(context, parts(to.count(), PIECE), [=](uint64_t piece, const Access& access) {
        const int64_t first = static_cast<int64_t>(piece) * PIECE,
                      count = std::min(PIECE, to.count() - first);
        to.check(access, true, "y");
        const Tensor* const places[1] = {&to};
        Walk<1> walk(to, places, first);
        for (int64_t k = 0; k < count; ++k, walk.next()) put(to, walk.offset[0], number);
    });
}

int reduce_tensor(Context context, const TensorReduction* form, uint64_t, size_t, uint64_t, size_t,
                  Scalar alpha, Layout a_layout, uint64_t a, Scalar beta, Layout c_layout, uint64_t c) {
    if (form->indices != REDUCTION_NO_INDICES) return refused(context.name, "a reduction with indices");
    const Tensor from = tensor_of(a_layout, a), to = tensor_of(c_layout, c);
    if (!from.valid() || !to.valid() || !to.spreads_to(from)) return BAD_PARAM;
    return reduce(context, form->operation, from, to, alpha, beta);
}
int reduction_workspace(Context, const TensorReduction*, Layout, Layout, Result bytes) {
    return bytes.set(0);
}

int activation_forward(Context context, const ActivationForm* form, Scalar alpha, Layout x_layout, uint64_t x,
                       Scalar beta, Layout y_layout, uint64_t y) {
    const Tensor to = tensor_of(y_layout, y);
    Pointwise op;
    if (!to.valid()) return BAD_PARAM;
    if (!activation(*form, op, false)) return refused(context.name, "that activation");
    return each(context, {tensor_of(x_layout, x)}, to, alpha, beta,
                [op](const double* v) { return op(v[0], 0, 0); });
}

int activation_backward(Context context, const ActivationForm* form, Scalar alpha, Layout, uint64_t,
                        Layout dy_layout, uint64_t dy, Layout x_layout, uint64_t x, Scalar beta,
                        Layout dx_layout, uint64_t dx) {
    const Tensor to = tensor_of(dx_layout, dx);
    Pointwise op;
    if (!to.valid()) return BAD_PARAM;
    if (!activation(*form, op, true)) return refused(context.name, "that activation");
    return each(context, {tensor_of(x_layout, x), tensor_of(dy_layout, dy)}, to, alpha, beta,
                [op](const double* v) { return op(v[0], v[1], 0); });
}

int softmax_forward(Context context, int algorithm, int mode, Scalar alpha, Layout x_layout, uint64_t x,
                    Scalar beta, Layout y_layout, uint64_t y) {
    constexpr int LOG = 2;
    const Tensor from = tensor_of(x_layout, x), to = tensor_of(y_layout, y);
    Tensor inner, outer;
    if (!from.valid() || !to.valid() || !from.same_extents(to) || algorithm < 0 || algorithm > LOG ||
        !softmax_volumes(from, mode, inner, outer))
        return BAD_PARAM;
    const int64_t terms = inner.count(), width = std::max<int64_t>(PIECE / terms, 1);
    if (terms > MOST_SOFTMAX) return refused(context.name, "a softmax over so many elements");
    const double a = alpha, b = beta;
    return submit(context, parts(outer.count(), width), [=](uint64_t number, const Access& access) {
        const int64_t first = static_cast<int64_t>(number) * width,
                      count = std::min(width, outer.count() - first);
        from.check(access, false, "x");
        to.check(access, true, "y");
        const Tensor* const places[2] = {&from, &to};
        Walk<2> walk(outer, places, first);
        Room<double> values(static_cast<size_t>(terms));
        for (int64_t k = 0; k < count; ++k, walk.next()) {
            double most = -INFINITY, sum = 0;
            Walk<2> along(inner, places, 0);
            for (double& value : values) {
                value = get(from, walk.offset[0] + along.offset[0]);
                most = std::isnan(value) || value > most ? value : most;
                along.next();
            }
            for (const double value : values) sum += std::exp(value - most);
            Walk<2> again(inner, places, 0);
            for (const double value : values) {
                const double result =
                    algorithm == LOG ? value - most - std::log(sum) : std::exp(value - most) / sum;
                blend(to, walk.offset[1] + again.offset[1], result, a, b);
                again.next();
            }
        }
    });
}

int softmax_backward(Context context, int algorithm, int mode, Scalar alpha, Layout y_layout, uint64_t y,
                     Layout dy_layout, uint64_t dy, Scalar beta, Layout dx_layout, uint64_t dx) {
    constexpr int LOG = 2;
    const Tensor result = tensor_of(y_layout, y), slope = tensor_of(dy_layout, dy),
                 to = tensor_of(dx_layout, dx);
    Tensor inner, outer;
    if (!result.valid() || !slope.valid() || !to.valid() || !result.same_extents(to) ||
        !slope.same_extents(to) || algorithm < 0 || algorithm > LOG ||
        !softmax_volumes(to, mode, inner, outer))
        return BAD_PARAM;
    const int64_t terms = inner.count(), width = std::max<int64_t>(PIECE / terms, 1);
    if (terms > MOST_SOFTMAX) return refused(context.name, "a softmax over so many elements");
    const double a = alpha, b = beta;
    return submit(context, parts(outer.count(), width), [=](uint64_t number, const Access& access) {
        const int64_t first = static_cast<int64_t>(number) * width,
                      count = std::min(width, outer.count() - first);
        result.check(access, false, "y");
        slope.check(access, false, "dy");
        to.check(access, true, "dx");
        const Tensor* const places[3] = {&result, &slope, &to};
        Walk<3> walk(outer, places, first);
        for (int64_t k = 0; k < count; ++k, walk.next()) {
            double sum = 0;
            Walk<3> along(inner, places, 0);
            for (int64_t i = 0; i < terms; ++i, along.next()) {
                const double d = get(slope, walk.offset[1] + along.offset[1]);
                sum += algorithm == LOG ? d : d * get(result, walk.offset[0] + along.offset[0]);
            }
            Walk<3> again(inner, places, 0);
            for (int64_t i = 0; i < terms; ++i, again.next()) {
                const double d = get(slope, walk.offset[1] + again.offset[1]),
                             value = get(result, walk.offset[0] + again.offset[0]);
                blend(to, walk.offset[2] + again.offset[2],
                      algorithm == LOG ? d - std::exp(value) * sum : value * (d - sum), a, b);
            }
        }
    });
}

}  // namespace gpukernel::simgpu_libraries::cudnn
