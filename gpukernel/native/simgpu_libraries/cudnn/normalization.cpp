// Batch normalisation, and normalisation across channels (LRN).
#include <vector>

#include "simgpu_libraries/cudnn/operations.h"
#include "simgpu_libraries/cudnn/pointwise.h"

namespace gpukernel::simgpu_libraries::cudnn {

namespace {
enum { OPS_NORM, OPS_ACTIVATION, OPS_ADD_ACTIVATION };
constexpr int RELU = 1;
constexpr int64_t PIECE = 1 << 15;

// What is normalised together: `inner`, once for each element of `outer`, which is that of mean and variance.
struct Channels {
    Tensor outer, inner;
    int64_t terms = 1, width = 1;
};
int channels_of(const Context& context, int mode, const Tensor& x, Layout layout, Channels& its) {
    its.outer = tensor_of(layout, 0);
    its.inner = x;
    if (!x.valid() || !its.outer.valid() || x.rank < 2 || mode < 0 || mode > 2 || !its.outer.spreads_to(x) ||
        (its.outer.type != FLOAT && its.outer.type != DOUBLE))
        return BAD_PARAM;
    for (int i = 0; i < x.rank; ++i) {
        const bool kept = mode ? i == 1 : i > 0;  // per channel, or per activation
        if (its.outer.extent[i] != (kept ? x.extent[i] : 1)) return BAD_PARAM;
        if (kept) its.inner.extent[i] = 1;
    }
    its.terms = its.inner.count();
    its.width = std::max<int64_t>(PIECE / its.terms, 1);
    return its.terms > MOST_REDUCED ? refused(context.name, "a normalisation of so many elements together")
                                    : SUCCESS;
}
Tensor at(const Tensor& like, uint64_t address) {
    Tensor tensor = like;
    tensor.address = address;
    return tensor;
}
void check(const Access& access, const Channels& its,
           std::initializer_list<std::pair<uint64_t, bool>> places) {
    for (const auto& [address, writing] : places)
        if (address) at(its.outer, address).check(access, writing, "a channel's numbers");
}

// The sum of function(offset in each tensor) over what is normalised together, beginning at `start`.
template <int COUNT, class Function>
void over(const Channels& its, const Tensor* const (&tensors)[COUNT], const int64_t (&start)[COUNT],
          Function function) {
    Walk<COUNT> walk(its.inner, tensors, 0);
    int64_t offsets[COUNT];
    for (int64_t k = 0; k < its.terms; ++k, walk.next()) {
        for (int i = 0; i < COUNT; ++i) offsets[i] = start[i] + walk.offset[i];
        function(offsets);
    }
}

void statistics(const Channels& its, const Tensor& x, int64_t start, double& mean, double& variance) {
    const Tensor* const one[1] = {&x};
    mean = variance = 0;
    with_element(x.type, [&]<class E>(E) {
        const auto* const from = reinterpret_cast<const typename E::Type*>(x.address);
        over(its, one, {start}, [&](const int64_t* o) { mean += E::template get<double>(from[o[0]]); });
        mean /= static_cast<double>(its.terms);
        over(its, one, {start}, [&](const int64_t* o) {
            const double distance = E::template get<double>(from[o[0]]) - mean;
            variance += distance * distance;
        });
        variance /= static_cast<double>(its.terms);
    });
}

struct Norm {
    Channels its;
    Tensor x, y, z, dx, dy, dz;
    uint64_t scale = 0, bias = 0, mean = 0, variance = 0, running_mean = 0, running_variance = 0;
    uint64_t dscale = 0, dbias = 0;
    double alpha = 1, beta = 0, alpha_parameters = 1, beta_parameters = 0, epsilon = 0, factor = 0;
    bool adds = false, rectifies = false, trains = false;
};

int fused(const Context& context, int ops, const ActivationForm* activation, Norm& norm) {
    if (ops < OPS_NORM || ops > OPS_ADD_ACTIVATION) return BAD_PARAM;
    if (ops == OPS_NORM) return SUCCESS;
    if (!activation || activation->mode != RELU)
        return refused(context.name, "an activation that is no ReLU");
    norm.rectifies = true, norm.adds = ops == OPS_ADD_ACTIVATION;
    return SUCCESS;
}

// What a training step keeps of a channel.
void remember(const Norm& n, int64_t channel, double mean, double variance) {
    const auto move = [&](uint64_t address, double value) {
        if (address) blend(at(n.its.outer, address), channel, value, n.factor, 1 - n.factor);
    };
    const auto terms = static_cast<double>(n.its.terms);
    move(n.running_mean, mean);
    move(n.running_variance, terms > 1 ? variance * terms / (terms - 1) : variance);
    if (n.mean) put(at(n.its.outer, n.mean), channel, mean);
    if (n.variance) put(at(n.its.outer, n.variance), channel, 1 / std::sqrt(variance + n.epsilon));
}

// --- tensors of one type and one layout, whose places lie evenly: nearly all there are ---

constexpr int LANES = 16;

struct Even {
    int64_t images = 0, places = 0, of_image = 0, of_place = 0, of_channel = 0;
    bool inside = false;  // channels are the innermost
};
bool same_layout(const Tensor& a, const Tensor& b) {
    return a.type == b.type && std::equal(a.stride, a.stride + a.rank, b.stride);
}
// Per channel, where nothing of the result before is kept.
bool even(const Norm& n, Even& its) {
    const Tensor& x = n.x;
    for (const Tensor* other : {&n.y, &n.z, &n.dy, &n.dx, &n.dz})
        if (other->rank && !same_layout(x, *other)) return false;
    if (x.rank < 3 || n.beta != 0 || n.its.outer.extent[x.rank - 1] != 1 ||
        n.its.outer.count() != x.extent[1] || !(x.type == FLOAT || x.type == HALF || x.type == BFLOAT16))
        return false;
    for (int i = 2; i + 1 < x.rank; ++i)
        if (x.stride[i] != x.stride[i + 1] * x.extent[i + 1]) return false;
    its = {x.extent[0], n.its.terms / x.extent[0], x.stride[0], x.stride[x.rank - 1],
           x.stride[1], x.stride[1] == 1};
    return its.inside || its.of_place == 1;
}

// Calls f(lane, place) for all places of the channels from `channel`: lanes are channels where those are the
// innermost, else every lane has part of one channel's places.
template <class Function>
void sweep(const Even& its, int64_t channel, int64_t width, Function f) {
    for (int64_t n = 0; n < its.images; ++n) {
        const int64_t begin = n * its.of_image + channel * its.of_channel;
        if (its.inside) {
            for (int64_t s = 0; s < its.places; ++s) {
                const int64_t at = begin + s * its.of_place;
                for (int64_t j = 0; j < width; ++j) f(j, at + j);
            }
            continue;
        }
        int64_t s = 0;
        for (; s + LANES <= its.places; s += LANES)
            for (int64_t j = 0; j < LANES; ++j) f(j, begin + s + j);
        for (; s < its.places; ++s) f(int64_t{0}, begin + s);
    }
}
// Adds up what the lanes have of one channel.
void join(const Even& its, double (&lanes)[LANES]) {
    if (its.inside) return;
    for (int j = 1; j < LANES; ++j) lanes[0] += lanes[j];
    std::fill(lanes + 1, lanes + LANES, lanes[0]);
}
// Channels of a piece.
int64_t tile(const Even& its) {
    return its.inside ? std::clamp<int64_t>((1 << 22) / (its.images * its.places), 1, LANES) : 1;
}
template <class Function>
void each_lane(const Even& its, int64_t width, Function f) {
    for (int64_t j = 0; j < (its.inside ? width : LANES); ++j) f(j, its.inside ? j : 0);
}

template <class E>
void forward_evenly(const Norm& n, const Even& its, int64_t channel, int64_t width) {
    using Stored = typename E::Type;
    const auto* const x = reinterpret_cast<const Stored*>(n.x.address);
    const auto* const z = reinterpret_cast<const Stored*>(n.z.address);
    auto* const y = reinterpret_cast<Stored*>(n.y.address);
    const auto terms = static_cast<double>(n.its.terms);
    const auto of = [&](uint64_t address) { return at(n.its.outer, address); };
    const int64_t step = n.its.outer.stride[1];
    double mean[LANES] = {}, variance[LANES] = {};
    if (n.trains) {
        sweep(its, channel, width, [&](int64_t j, int64_t o) { mean[j] += E::template get<double>(x[o]); });
        join(its, mean);
        for (double& one : mean) one /= terms;
        sweep(its, channel, width, [&](int64_t j, int64_t o) {
            const double distance = E::template get<double>(x[o]) - mean[j];
            variance[j] += distance * distance;
        });
        join(its, variance);
        for (double& one : variance) one /= terms;
    } else {
        each_lane(its, width, [&](int64_t j, int64_t c) {
            mean[j] = get(of(n.mean), (channel + c) * step),
            variance[j] = get(of(n.variance), (channel + c) * step);
        });
    }
    float slope[LANES] = {}, shift[LANES] = {};
    each_lane(its, width, [&](int64_t j, int64_t c) {
        const double factor = get(of(n.scale), (channel + c) * step) / std::sqrt(variance[j] + n.epsilon);
        slope[j] = static_cast<float>(factor);
        shift[j] = static_cast<float>(get(of(n.bias), (channel + c) * step) - mean[j] * factor);
    });
    for (int64_t c = 0; n.trains && c < width; ++c) remember(n, (channel + c) * step, mean[c], variance[c]);
    const auto alpha = static_cast<float>(n.alpha);
    const bool rectifies = n.rectifies, adds = n.adds;
    sweep(its, channel, width, [&](int64_t j, int64_t o) {
        float value = E::template get<float>(x[o]) * slope[j] + shift[j];
        if (adds) value += E::template get<float>(z[o]);
        if (rectifies) value = value < 0 ? 0 : value;
        y[o] = E::put(alpha * value);
    });
}

template <class E>
void backward_evenly(const Norm& n, const Even& its, int64_t channel, int64_t width) {
    using Stored = typename E::Type;
    const auto* const x = reinterpret_cast<const Stored*>(n.x.address);
    const auto* const y = reinterpret_cast<const Stored*>(n.y.address);
    const auto* const dy = reinterpret_cast<const Stored*>(n.dy.address);
    auto* const dx = reinterpret_cast<Stored*>(n.dx.address);
    auto* const dz = reinterpret_cast<Stored*>(n.dz.address);
    const auto of = [&](uint64_t address) { return at(n.its.outer, address); };
    const int64_t step = n.its.outer.stride[1];
    double mean[LANES] = {}, inverse[LANES] = {}, sum[LANES] = {}, product[LANES] = {};
    each_lane(its, width, [&](int64_t j, int64_t c) {
        mean[j] = get(of(n.mean), (channel + c) * step),
        inverse[j] = get(of(n.variance), (channel + c) * step);
    });
    const bool rectifies = n.rectifies, adds = n.adds;
    const auto slope = [&](int64_t o) {
        const float d = E::template get<float>(dy[o]);
        return rectifies && !(E::template get<float>(y[o]) > 0) ? 0.0f : d;
    };
    sweep(its, channel, width, [&](int64_t j, int64_t o) {
        const auto d = static_cast<double>(slope(o));
        sum[j] += d, product[j] += d * (E::template get<double>(x[o]) - mean[j]);
    });
    join(its, sum), join(its, product);
    const auto terms = static_cast<double>(n.its.terms);
    float factor[LANES] = {}, whole[LANES] = {}, part[LANES] = {}, middle[LANES] = {};
    each_lane(its, width, [&](int64_t j, int64_t c) {
        factor[j] = static_cast<float>(n.alpha * get(of(n.scale), (channel + c) * step) * inverse[j]);
        whole[j] = static_cast<float>(sum[j] / terms);
        part[j] = static_cast<float>(product[j] * inverse[j] * inverse[j] / terms);
        middle[j] = static_cast<float>(mean[j]);
    });
    for (int64_t c = 0; c < width; ++c) {
        blend(of(n.dscale), (channel + c) * step, product[c] * inverse[c], n.alpha_parameters,
              n.beta_parameters);
        blend(of(n.dbias), (channel + c) * step, sum[c], n.alpha_parameters, n.beta_parameters);
    }
    sweep(its, channel, width, [&](int64_t j, int64_t o) {
        const float d = slope(o);
        if (adds) dz[o] = E::put(d);
        dx[o] = E::put(factor[j] * (d - whole[j] - (E::template get<float>(x[o]) - middle[j]) * part[j]));
    });
}

template <class Function>
void with_narrow(int type, Function function) {
    if (type == HALF) return function(Element<HALF>{});
    if (type == BFLOAT16) return function(Element<BFLOAT16>{});
    return function(Element<FLOAT>{});
}

void forward(const Norm& n, uint64_t piece, const Access& access) {
    n.x.check(access, false, "x");
    n.y.check(access, true, "y");
    if (n.adds) n.z.check(access, false, "z");
    check(access, n.its,
          {{n.scale, false},
           {n.bias, false},
           {n.mean, n.trains},
           {n.variance, n.trains},
           {n.running_mean, n.trains},
           {n.running_variance, n.trains}});
    if (Even its; even(n, its)) {
        const int64_t channel = static_cast<int64_t>(piece) * tile(its);
        return with_narrow(n.x.type, [&]<class E>(E) {
            forward_evenly<E>(n, its, channel, std::min(tile(its), n.x.extent[1] - channel));
        });
    }
    const Tensor* const tensors[4] = {&n.its.outer, &n.x, &n.y, n.adds ? &n.z : nullptr};
    const int64_t first = static_cast<int64_t>(piece) * n.its.width;
    const auto number = [&](uint64_t address, int64_t offset) {
        return get(at(n.its.outer, address), offset);
    };
    Walk<4> walk(n.its.outer, tensors, first);
    for (int64_t k = first; k < std::min(first + n.its.width, n.its.outer.count()); ++k, walk.next()) {
        const int64_t channel = walk.offset[0];
        double mean, variance;
        if (n.trains) {
            statistics(n.its, n.x, walk.offset[1], mean, variance);
            remember(n, channel, mean, variance);
        } else {
            mean = number(n.mean, channel), variance = number(n.variance, channel);
        }
        const double slope = number(n.scale, channel) / std::sqrt(variance + n.epsilon),
                     shift = number(n.bias, channel) - mean * slope;
        const Tensor* const three[3] = {&n.x, &n.y, n.adds ? &n.z : nullptr};
        with_element(n.x.type, [&]<class E>(E) {
            const auto* const from = reinterpret_cast<const typename E::Type*>(n.x.address);
            over(n.its, three, {walk.offset[1], walk.offset[2], walk.offset[3]}, [&](const int64_t* o) {
                double value = E::template get<double>(from[o[0]]) * slope + shift;
                if (n.adds) value += get(n.z, o[2]);
                if (n.rectifies && value < 0) value = 0;
                blend(n.y, o[1], value, n.alpha, n.beta);
            });
        });
    }
}

void backward(const Norm& n, uint64_t piece, const Access& access) {
    n.x.check(access, false, "x");
    n.dy.check(access, false, "dy");
    n.dx.check(access, true, "dx");
    if (n.rectifies) n.y.check(access, false, "y");
    if (n.adds) n.dz.check(access, true, "dz");
    check(access, n.its,
          {{n.scale, false}, {n.mean, false}, {n.variance, false}, {n.dscale, true}, {n.dbias, true}});
    if (Even its; n.mean && even(n, its)) {
        const int64_t channel = static_cast<int64_t>(piece) * tile(its);
        return with_narrow(n.x.type, [&]<class E>(E) {
            backward_evenly<E>(n, its, channel, std::min(tile(its), n.x.extent[1] - channel));
        });
    }
    const Tensor* const tensors[6] = {
        &n.its.outer, &n.x, &n.dy, &n.dx, n.rectifies ? &n.y : nullptr, n.adds ? &n.dz : nullptr};
    const int64_t first = static_cast<int64_t>(piece) * n.its.width;
    Walk<6> walk(n.its.outer, tensors, first);
    for (int64_t k = first; k < std::min(first + n.its.width, n.its.outer.count()); ++k, walk.next()) {
        const int64_t channel = walk.offset[0];
        double mean, inverse;
        if (n.mean) {
            mean = get(at(n.its.outer, n.mean), channel), inverse = get(at(n.its.outer, n.variance), channel);
        } else {
            statistics(n.its, n.x, walk.offset[1], mean, inverse);
            inverse = 1 / std::sqrt(inverse + n.epsilon);
        }
        const Tensor* const five[5] = {&n.x, &n.dy, &n.dx, tensors[4], tensors[5]};
        const int64_t start[5] = {walk.offset[1], walk.offset[2], walk.offset[3], walk.offset[4],
                                  walk.offset[5]};
        const auto slope = [&](const int64_t* o) {
            return n.rectifies && get(n.y, o[3]) <= 0 ? 0 : get(n.dy, o[1]);
        };
        double sum = 0, product = 0;
        over(n.its, five, start, [&](const int64_t* o) {
            const double d = slope(o);
            sum += d, product += d * (get(n.x, o[0]) - mean) * inverse;
        });
        blend(at(n.its.outer, n.dscale), channel, product, n.alpha_parameters, n.beta_parameters);
        blend(at(n.its.outer, n.dbias), channel, sum, n.alpha_parameters, n.beta_parameters);
        const double scale = get(at(n.its.outer, n.scale), channel) * inverse;
        const auto terms = static_cast<double>(n.its.terms);
        over(n.its, five, start, [&](const int64_t* o) {
            const double d = slope(o), distance = (get(n.x, o[0]) - mean) * inverse;
            if (n.adds) put(n.dz, o[4], d);
            blend(n.dx, o[2], scale * (d - (sum + distance * product) / terms), n.alpha, n.beta);
        });
    }
}

int start(const Context& context, const Norm& norm, void (*run)(const Norm&, uint64_t, const Access&)) {
    Even its;
    const bool evenly = even(norm, its) && (norm.mean || run == forward);
    return submit(context, parts(norm.its.outer.count(), evenly ? tile(its) : norm.its.width),
                  [norm, run](uint64_t piece, const Access& access) { run(norm, piece, access); });
}
}  // namespace

int batch_norm_inference(Context context, int mode, Scalar alpha, Scalar beta, Layout x_layout, uint64_t x,
                         Layout y_layout, uint64_t y, Layout channels, uint64_t scale, uint64_t bias,
                         uint64_t mean, uint64_t variance, double epsilon) {
    Norm n;
    n.x = tensor_of(x_layout, x), n.y = tensor_of(y_layout, y);
    if (const int status = channels_of(context, mode, n.x, channels, n.its)) return status;
    if (!n.y.valid() || !n.y.same_extents(n.x) || !scale || !bias || !mean || !variance) return BAD_PARAM;
    n.scale = scale, n.bias = bias, n.mean = mean, n.variance = variance, n.epsilon = epsilon;
    n.alpha = alpha, n.beta = beta;
    return start(context, n, forward);
}

int batch_norm_training_ex(Context context, int mode, int ops, Scalar alpha, Scalar beta, Layout x_layout,
                           uint64_t x, Layout z_layout, uint64_t z, Layout y_layout, uint64_t y,
                           Layout channels, uint64_t scale, uint64_t bias, double factor,
                           uint64_t running_mean, uint64_t running_variance, double epsilon,
                           uint64_t saved_mean, uint64_t saved_inverse, const ActivationForm* activation,
                           uint64_t, size_t, uint64_t, size_t) {
    Norm n;
    n.x = tensor_of(x_layout, x), n.y = tensor_of(y_layout, y);
    if (const int status = channels_of(context, mode, n.x, channels, n.its)) return status;
    if (const int status = fused(context, ops, activation, n)) return status;
    if (n.adds && !z_layout) return BAD_PARAM;
    if (n.adds) n.z = tensor_of(z_layout, z);
    if (!n.y.valid() || !n.y.same_extents(n.x) || !scale || !bias ||
        (n.adds && (!n.z.valid() || !n.z.same_extents(n.x))) || !running_mean != !running_variance ||
        !saved_mean != !saved_inverse)
        return BAD_PARAM;
    n.trains = true;
    n.scale = scale, n.bias = bias, n.mean = saved_mean, n.variance = saved_inverse;
    n.running_mean = running_mean, n.running_variance = running_variance;
    n.epsilon = epsilon, n.factor = factor, n.alpha = alpha, n.beta = beta;
    return start(context, n, forward);
}

int batch_norm_training(Context context, int mode, Scalar alpha, Scalar beta, Layout x_layout, uint64_t x,
                        Layout y_layout, uint64_t y, Layout channels, uint64_t scale, uint64_t bias,
                        double factor, uint64_t running_mean, uint64_t running_variance, double epsilon,
                        uint64_t saved_mean, uint64_t saved_inverse) {
    return batch_norm_training_ex(context, mode, OPS_NORM, alpha, beta, x_layout, x, nullptr, 0, y_layout, y,
                                  channels, scale, bias, factor, running_mean, running_variance, epsilon,
                                  saved_mean, saved_inverse, nullptr, 0, 0, 0, 0);
}

int batch_norm_backward_ex(Context context, int mode, int ops, Scalar alpha, Scalar beta,
                           Scalar alpha_parameters, Scalar beta_parameters, Layout x_layout, uint64_t x,
                           Layout y_layout, uint64_t y, Layout dy_layout, uint64_t dy, Layout dz_layout,
                           uint64_t dz, Layout dx_layout, uint64_t dx, Layout channels, uint64_t scale,
                           uint64_t, uint64_t dscale, uint64_t dbias, double epsilon, uint64_t saved_mean,
                           uint64_t saved_inverse, const ActivationForm* activation, uint64_t, size_t,
                           uint64_t, size_t) {
    Norm n;
    n.x = tensor_of(x_layout, x), n.dy = tensor_of(dy_layout, dy), n.dx = tensor_of(dx_layout, dx);
    if (const int status = channels_of(context, mode, n.x, channels, n.its)) return status;
    if (const int status = fused(context, ops, activation, n)) return status;
    const auto fits = [&](const Tensor& tensor) { return tensor.valid() && tensor.same_extents(n.x); };
    if (!fits(n.dy) || !fits(n.dx) || !scale || !dscale || !dbias || !saved_mean != !saved_inverse)
        return BAD_PARAM;
    if (n.rectifies) {
        if (!y_layout || !y) return BAD_PARAM;
        n.y = tensor_of(y_layout, y);
        if (!fits(n.y)) return BAD_PARAM;
    }
    if (n.adds) {
        if (!dz_layout || !dz) return BAD_PARAM;
        n.dz = tensor_of(dz_layout, dz);
        if (!fits(n.dz)) return BAD_PARAM;
    }
    n.scale = scale, n.dscale = dscale, n.dbias = dbias, n.mean = saved_mean, n.variance = saved_inverse;
    n.epsilon = epsilon, n.alpha = alpha, n.beta = beta;
    n.alpha_parameters = alpha_parameters, n.beta_parameters = beta_parameters;
    return start(context, n, backward);
}

int batch_norm_backward(Context context, int mode, Scalar alpha, Scalar beta, Scalar alpha_parameters,
                        Scalar beta_parameters, Layout x_layout, uint64_t x, Layout dy_layout, uint64_t dy,
                        Layout dx_layout, uint64_t dx, Layout channels, uint64_t scale, uint64_t dscale,
                        uint64_t dbias, double epsilon, uint64_t saved_mean, uint64_t saved_inverse) {
    return batch_norm_backward_ex(context, mode, OPS_NORM, alpha, beta, alpha_parameters, beta_parameters,
                                  x_layout, x, nullptr, 0, dy_layout, dy, nullptr, 0, dx_layout, dx, channels,
                                  scale, 0, dscale, dbias, epsilon, saved_mean, saved_inverse, nullptr, 0, 0,
                                  0, 0);
}

int batch_norm_training_workspace(Context, int, int, Layout, Layout, Layout, Layout, const ActivationForm*,
                                  Result bytes) {
    return bytes.set(0);
}
int batch_norm_backward_workspace(Context, int, int, Layout, Layout, Layout, Layout, Layout, Layout,
                                  const ActivationForm*, Result bytes) {
    return bytes.set(0);
}
int batch_norm_reserve(Context, int, int, const ActivationForm*, Layout, Result bytes) {
    return bytes.set(0);
}

// --- across channels ---

namespace {
struct Across {
    Tensor x, y, dy, to, outer;
    NormalizationForm form;
    double alpha, beta;
    int64_t width;
};
int described(const Context& context, const NormalizationForm* form, int mode, Layout x, Layout to,
              Across& a) {
    if (mode || form->channels < 1 || form->channels > 16) return BAD_PARAM;
    a.form = *form;
    if (!a.x.valid() || !a.to.valid() || a.x.rank < 3 || !a.x.same_extents(a.to)) return BAD_PARAM;
    if (a.x.extent[1] > 1 << 20) return refused(context.name, "so many channels");
    a.outer = a.x;
    a.outer.extent[1] = 1;
    a.width = std::max<int64_t>(PIECE / (a.x.extent[1] * form->channels), 1);
    return SUCCESS;
}
// s = k + alpha / n * the sum of squares of the neighbours, for each channel at one place.
Room<double> sums(const Across& a, const Room<double>& values) {
    const auto count = static_cast<int64_t>(values.size()), before = (a.form.channels - 1) / 2;
    Room<double> all(values.size());
    for (int64_t c = 0; c < count; ++c) {
        double sum = 0;
        for (int64_t k = std::max<int64_t>(c - before, 0); k < std::min(c - before + a.form.channels, count);
             ++k)
            sum += values[static_cast<size_t>(k)] * values[static_cast<size_t>(k)];
        all[static_cast<size_t>(c)] = a.form.k + a.form.alpha / static_cast<double>(a.form.channels) * sum;
    }
    return all;
}
Room<double> channels_at(const Tensor& of, int64_t offset) {
    Room<double> values(static_cast<size_t>(of.extent[1]));
    for (size_t c = 0; c < values.size(); ++c)
        values[c] = get(of, offset + static_cast<int64_t>(c) * of.stride[1]);
    return values;
}
}  // namespace

int lrn_forward(Context context, const NormalizationForm* form, int mode, Scalar alpha, Layout x_layout,
                uint64_t x, Scalar beta, Layout y_layout, uint64_t y) {
    Across a{tensor_of(x_layout, x), {}, {}, tensor_of(y_layout, y), {}, {}, alpha, beta, 1};
    if (const int status = described(context, form, mode, x_layout, y_layout, a)) return status;
    return submit(context, parts(a.outer.count(), a.width), [a](uint64_t piece, const Access& access) {
        a.x.check(access, false, "x");
        a.to.check(access, true, "y");
        const Tensor* const places[2] = {&a.x, &a.to};
        const int64_t first = static_cast<int64_t>(piece) * a.width;
        Walk<2> walk(a.outer, places, first);
        for (int64_t k = first; k < std::min(first + a.width, a.outer.count()); ++k, walk.next()) {
            const auto values = channels_at(a.x, walk.offset[0]), all = sums(a, values);
            for (size_t c = 0; c < values.size(); ++c)
                blend(a.to, walk.offset[1] + static_cast<int64_t>(c) * a.to.stride[1],
                      values[c] * std::pow(all[c], -a.form.beta), a.alpha, a.beta);
        }
    });
}

int lrn_backward(Context context, const NormalizationForm* form, int mode, Scalar alpha, Layout, uint64_t,
                 Layout dy_layout, uint64_t dy, Layout x_layout, uint64_t x, Scalar beta, Layout dx_layout,
                 uint64_t dx) {
    Across a{tensor_of(x_layout, x),
             {},
             tensor_of(dy_layout, dy),
             tensor_of(dx_layout, dx),
             {},
             {},
             alpha,
             beta,
             1};
    if (const int status = described(context, form, mode, x_layout, dx_layout, a)) return status;
    if (!a.dy.valid() || !a.dy.same_extents(a.x)) return BAD_PARAM;
    return submit(context, parts(a.outer.count(), a.width), [a](uint64_t piece, const Access& access) {
        a.x.check(access, false, "x");
        a.dy.check(access, false, "dy");
        a.to.check(access, true, "dx");
        const Tensor* const places[3] = {&a.x, &a.dy, &a.to};
        const int64_t first = static_cast<int64_t>(piece) * a.width;
        const int64_t before = (a.form.channels - 1) / 2;
        Walk<3> walk(a.outer, places, first);
        for (int64_t k = first; k < std::min(first + a.width, a.outer.count()); ++k, walk.next()) {
            const auto values = channels_at(a.x, walk.offset[0]), slopes = channels_at(a.dy, walk.offset[1]),
                       all = sums(a, values);
            const auto count = static_cast<int64_t>(values.size());
            for (int64_t c = 0; c < count; ++c) {
                double sum = 0;  // over the channels of whose sum this one is part
                for (int64_t j = std::max<int64_t>(c + before - a.form.channels + 1, 0);
                     j <= std::min(c + before, count - 1); ++j) {
                    const auto i = static_cast<size_t>(j);
                    sum += slopes[i] * values[i] * std::pow(all[i], -a.form.beta - 1);
                }
                const auto i = static_cast<size_t>(c);
                const double value =
                    slopes[i] * std::pow(all[i], -a.form.beta) -
                    2 * a.form.alpha * a.form.beta / static_cast<double>(a.form.channels) * values[i] * sum;
                blend(a.to, walk.offset[2] + c * a.to.stride[1], value, a.alpha, a.beta);
            }
        }
    });
}

}  // namespace gpukernel::simgpu_libraries::cudnn
