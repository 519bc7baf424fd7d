// Convolutions outside of the backend API.
#include "simgpu_libraries/cudnn/convolution.h"
#include "simgpu_libraries/cudnn/operations.h"
#include "simgpu_libraries/cudnn/pointwise.h"

namespace gpukernel::simgpu_libraries::cudnn {

namespace {
int described(const Context& context, Convolution::Direction direction, Layout x_layout, uint64_t x,
              const FilterLayout* filter, uint64_t w, const ConvolutionForm* form, Layout y_layout,
              uint64_t y, Convolution& c) {
    c.direction = direction;
    c.x = tensor_of(x_layout, x), c.w = tensor_of(filter, w), c.y = tensor_of(y_layout, y);
    if (form->rank < 1) return BAD_PARAM;
    // A convolution in one dimension has tensors of four, whose last is 1.
    if (form->rank > MOST_SPATIAL)
        return refused(context.name, "a convolution of more than three dimensions");
    c.spatial = form->rank;
    for (int i = 0; i < c.spatial; ++i) {
        c.before[i] = c.after[i] = form->padding[i];
        c.stride[i] = form->stride[i], c.dilation[i] = form->dilation[i];
    }
    c.flipped = form->mode == 0;
    const char* why = "";
    const int status = check(c, why);
    if (!status && c.groups() != std::max(form->groups, 1)) return BAD_PARAM;
    return status == NOT_SUPPORTED ? refused(context.name, why) : status;
}
}  // namespace

int convolution_forward(Context context, Scalar alpha, Layout x_layout, uint64_t x,
                        const FilterLayout* filter, uint64_t w, const ConvolutionForm* form, int, uint64_t,
                        size_t, Scalar beta, Layout y_layout, uint64_t y) {
    Convolution c;
    if (const int status =
            described(context, Convolution::FORWARD, x_layout, x, filter, w, form, y_layout, y, c))
        return status;
    c.alpha = alpha, c.beta = beta;
    return convolve(context, c);
}

int convolution_to_data(Context context, Scalar alpha, const FilterLayout* filter, uint64_t w,
                        Layout dy_layout, uint64_t dy, const ConvolutionForm* form, int, uint64_t, size_t,
                        Scalar beta, Layout dx_layout, uint64_t dx) {
    Convolution c;
    if (const int status =
            described(context, Convolution::TO_DATA, dx_layout, dx, filter, w, form, dy_layout, dy, c))
        return status;
    c.alpha = alpha, c.beta = beta;
    return convolve(context, c);
}

int convolution_to_filter(Context context, Scalar alpha, Layout x_layout, uint64_t x, Layout dy_layout,
                          uint64_t dy, const ConvolutionForm* form, int, uint64_t, size_t, Scalar beta,
                          const FilterLayout* filter, uint64_t dw) {
    Convolution c;
    if (const int status =
            described(context, Convolution::TO_FILTER, x_layout, x, filter, dw, form, dy_layout, dy, c))
        return status;
    c.alpha = alpha, c.beta = beta;
    return convolve(context, c);
}

// y = activation(alpha1 * conv(x) + alpha2 * z + bias)
int convolution_bias_activation(Context context, Scalar alpha1, Layout x_layout, uint64_t x,
                                const FilterLayout* filter, uint64_t w, const ConvolutionForm* form, int,
                                uint64_t, size_t, Scalar alpha2, Layout z_layout, uint64_t z,
                                Layout bias_layout, uint64_t bias, const ActivationForm* activation,
                                Layout y_layout, uint64_t y) {
    Convolution c;
    if (const int status =
            described(context, Convolution::FORWARD, x_layout, x, filter, w, form, y_layout, y, c))
        return status;
    constexpr int ADD = 0, RELU = 100;
    if (activation->mode != 1 && activation->mode != 5) return refused(context.name, "that activation");
    const Tensor before = tensor_of(z_layout, z), shift = tensor_of(bias_layout, bias);
    if (!before.valid() || !before.same_extents(c.y) || !shift.valid() || !shift.spreads_to(c.y))
        return BAD_PARAM;
    c.alpha = alpha1;
    const double factor = alpha2;
    if (factor != 0 && z == y && std::equal(before.stride, before.stride + before.rank, c.y.stride)) {
        c.beta = factor;
    } else if (factor != 0) {  // z first, then the convolution upon it
        ElementOperand operands[3] = {{before, {}, factor}, {{}, 0.0, 1}, {}};
        Pointwise add;
        add.mode = ADD;
        if (const int status = pointwise(context, add, operands, c.y)) return status;
        c.beta = 1;
    }
    if (const int status = convolve(context, c)) return status;
    Pointwise op;
    op.mode = ADD;
    ElementOperand sum[3] = {{c.y, {}, 1}, {shift, {}, 1}, {}};
    if (const int status = pointwise(context, op, sum, c.y)) return status;
    if (activation->mode == 5) return SUCCESS;
    op.mode = RELU, op.upper = INFINITY;
    ElementOperand one[3] = {{c.y, {}, 1}, {}, {}};
    return pointwise(context, op, one, c.y);
}

int convolution_to_bias(Context context, Scalar alpha, Layout dy_layout, uint64_t dy, Scalar beta,
                        Layout db_layout, uint64_t db) {
    const Tensor from = tensor_of(dy_layout, dy), to = tensor_of(db_layout, db);
    if (!from.valid() || !to.valid() || !to.spreads_to(from)) return BAD_PARAM;
    return reduce(context, R_ADD, from, to, alpha, beta);
}

int forward_workspace(Context context, Layout x, const FilterLayout* w, const ConvolutionForm* form, Layout y,
                      int, Result bytes) {
    Convolution c;
    const int status = described(context, Convolution::FORWARD, x, 0, w, 0, form, y, 0, c);
    return status ? status : bytes.set(0);
}
int to_data_workspace(Context context, const FilterLayout* w, Layout dy, const ConvolutionForm* form,
                      Layout dx, int, Result bytes) {
    Convolution c;
    const int status = described(context, Convolution::TO_DATA, dx, 0, w, 0, form, dy, 0, c);
    return status ? status : bytes.set(0);
}
int to_filter_workspace(Context context, Layout x, Layout dy, const ConvolutionForm* form,
                        const FilterLayout* dw, int, Result bytes) {
    Convolution c;
    const int status = described(context, Convolution::TO_FILTER, x, 0, dw, 0, form, dy, 0, c);
    return status ? status : bytes.set(0);
}

}  // namespace gpukernel::simgpu_libraries::cudnn
