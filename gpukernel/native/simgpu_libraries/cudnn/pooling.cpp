// Pooling: the largest of a window, or its mean.
#include <span>
#include <vector>

#include "simgpu_libraries/cudnn/operations.h"

namespace gpukernel::simgpu_libraries::cudnn {

namespace {
constexpr int MOST_SPATIAL = 3;
constexpr int64_t MOST_PLANE = 1 << 24, MOST_WINDOW = 1 << 16, PIECE = 1 << 15;
enum Mode { MAX, INCLUDING, EXCLUDING, MAX_DETERMINISTIC };

struct Pooling {
    int spatial = 0, mode = 0;
    bool nan = false;
    int64_t window[MOST_SPATIAL], padding[MOST_SPATIAL], stride[MOST_SPATIAL];
    Tensor x, y;
    int64_t places = 1, inputs = 1, all = 1;  // of a plane of the result, of the input; of a window

    int64_t planes() const { return x.extent[0] * x.extent[1]; }
    int64_t planes_of_piece() const { return std::max<int64_t>(PIECE / std::max(places * all, inputs), 1); }

    // Calls f(place in the input's plane, offset in x, whether it is in) for the part of a window within x.
    template <class Function>
    int64_t window_of(int64_t place, Function function) const {
        int64_t begin[MOST_SPATIAL], end[MOST_SPATIAL], at[MOST_SPATIAL], counted = 1;
        for (int i = spatial - 1; i >= 0; --i) {
            const int64_t first = place % y.extent[2 + i] * stride[i] - padding[i];
            place /= y.extent[2 + i];
            begin[i] = std::max<int64_t>(first, 0), end[i] = std::min(first + window[i], x.extent[2 + i]);
            // The window's part that lies beyond both the input and its padding is no part of a mean.
            counted *= std::min(first + window[i], x.extent[2 + i] + padding[i]) - first;
            if (begin[i] >= end[i]) return counted;
        }
        std::copy(begin, begin + spatial, at);
        for (;;) {
            int64_t number = 0, offset = 0;
            for (int i = 0; i < spatial; ++i)
                number = number * x.extent[2 + i] + at[i], offset += at[i] * x.stride[2 + i];
            function(number, offset);
            int i = spatial - 1;
            for (; i >= 0 && ++at[i] == end[i]; --i) at[i] = begin[i];
            if (i < 0) return counted;
        }
    }
    int64_t offset_of(const Tensor& tensor, int64_t place) const {
        int64_t offset = 0;
        for (int i = spatial - 1; i >= 0; --i)
            offset += place % tensor.extent[2 + i] * tensor.stride[2 + i], place /= tensor.extent[2 + i];
        return offset;
    }
};

// The windows of a stretch of places, which are the same in every plane: what lies in each, by how much a
// mean is divided, and where the result is.
struct Windows {
    struct In {
        int64_t number, offset;  // in the input's plane, and in x
    };
    Room<In> in;
    Room<size_t> begin{0};
    Room<double> terms;
    Room<int64_t> out;

    Windows(const Pooling& p, const Tensor& result, int64_t first, int64_t count) {
        for (int64_t place = first; place < first + count; ++place) {
            const int64_t counted =
                p.window_of(place, [&](int64_t number, int64_t offset) { in.push_back({number, offset}); });
            const auto within = static_cast<int64_t>(in.size() - begin.back());
            terms.push_back(
                static_cast<double>(std::max<int64_t>(p.mode == EXCLUDING ? within : counted, 1)));
            begin.push_back(in.size());
            out.push_back(p.offset_of(result, place));
        }
    }
    std::span<const In> of(size_t place) const {
        return std::span(in).subspan(begin[place], begin[place + 1] - begin[place]);
    }
};

// The largest of a window: its place in the plane; -1 for a window of nothing.
template <class Plane>
int64_t largest(const Plane& plane, std::span<const Windows::In> window, bool nan, double& value) {
    int64_t found = -1;
    value = -INFINITY;
    for (const Windows::In& one : window) {
        const double candidate = plane(one.offset);
        if (found < 0 || candidate > value || (nan && std::isnan(candidate) && !std::isnan(value)))
            value = candidate, found = one.number;
    }
    return found;
}

// Calls f(plane's number in the piece, its place in x, its place in the other, windows) for a piece's planes.
template <class Function>
void each_plane(const Pooling& p, const Tensor& result, uint64_t piece, Function f) {
    const int64_t width = p.planes_of_piece(), begin = static_cast<int64_t>(piece) * width,
                  stretch = std::max<int64_t>((1 << 18) / p.all, 1);
    for (int64_t first = 0; first < p.places; first += stretch) {
        const Windows windows(p, result, first, std::min(stretch, p.places - first));
        for (int64_t plane = begin; plane < std::min(begin + width, p.planes()); ++plane) {
            const int64_t n = plane / p.x.extent[1], c = plane % p.x.extent[1];
            f(plane - begin, n * p.x.stride[0] + c * p.x.stride[1],
              n * result.stride[0] + c * result.stride[1], windows);
        }
    }
}

int described(const Context& context, const PoolingForm* form, Layout x, uint64_t x_at, Layout y,
              uint64_t y_at, Pooling& p) {
    p.x = tensor_of(x, x_at), p.y = tensor_of(y, y_at);
    if (form->rank < 1 || form->rank > MOST_SPATIAL)
        return refused(context.name, "pooling of more than three dimensions");
    p.spatial = form->rank, p.mode = form->mode, p.nan = form->nan;
    if (!p.x.valid() || !p.y.valid() || p.x.rank != p.spatial + 2 || p.y.rank != p.x.rank || p.mode < 0 ||
        p.mode > 3 || p.x.extent[0] != p.y.extent[0] || p.x.extent[1] != p.y.extent[1])
        return BAD_PARAM;
    for (int i = 0; i < p.spatial; ++i) {
        p.window[i] = form->window[i], p.padding[i] = form->padding[i], p.stride[i] = form->stride[i];
        if (p.window[i] <= 0 || p.padding[i] < 0 || p.stride[i] <= 0 || p.padding[i] >= p.window[i])
            return BAD_PARAM;
        // Frameworks pad at the end by asking for a larger result: its windows begin within the input.
        if ((p.y.extent[2 + i] - 1) * p.stride[i] - p.padding[i] >= p.x.extent[2 + i]) return BAD_PARAM;
        p.places *= p.y.extent[2 + i], p.inputs *= p.x.extent[2 + i], p.all *= p.window[i];
        if (p.all > MOST_WINDOW) return refused(context.name, "a window that is so large");
    }
    if (std::max(p.places, p.inputs) > MOST_PLANE || p.places * p.all > MOST_PLANE * 4)
        return refused(context.name, "pooling of so large a plane");
    return SUCCESS;
}
}  // namespace

int pooling_forward(Context context, const PoolingForm* form, Scalar alpha, Layout x_layout, uint64_t x,
                    Scalar beta, Layout y_layout, uint64_t y) {
    Pooling p;
    if (const int status = described(context, form, x_layout, x, y_layout, y, p)) return status;
    const double a = alpha, b = beta;
    return submit(context, parts(p.planes(), p.planes_of_piece()), [=](uint64_t piece, const Access& access) {
        p.x.check(access, false, "x");
        p.y.check(access, true, "y");
        with_element(p.x.type, [&]<class E>(E) {
            const auto* const base = reinterpret_cast<const typename E::Type*>(p.x.address);
            each_plane(p, p.y, piece, [&](int64_t, int64_t from, int64_t to, const Windows& windows) {
                const auto plane = [&](int64_t offset) {
                    return E::template get<double>(base[from + offset]);
                };
                for (size_t i = 0; i < windows.out.size(); ++i) {
                    double value = 0;
                    if (p.mode == MAX || p.mode == MAX_DETERMINISTIC) {
                        largest(plane, windows.of(i), p.nan, value);
                    } else {
                        for (const Windows::In& one : windows.of(i)) value += plane(one.offset);
                        value /= windows.terms[i];
                    }
                    blend(p.y, to + windows.out[i], value, a, b);
                }
            });
        });
    });
}

int pooling_backward(Context context, const PoolingForm* form, Scalar alpha, Layout y_layout, uint64_t y,
                     Layout dy_layout, uint64_t dy, Layout x_layout, uint64_t x, Scalar beta,
                     Layout dx_layout, uint64_t dx) {
    Pooling p;
    if (const int status = described(context, form, x_layout, x, y_layout, y, p)) return status;
    const Tensor slope = tensor_of(dy_layout, dy), to = tensor_of(dx_layout, dx);
    if (!slope.valid() || !to.valid() || !slope.same_extents(p.y) || !to.same_extents(p.x)) return BAD_PARAM;
    const double a = alpha, b = beta;
    const auto needed = static_cast<uint64_t>(p.inputs) * (sizeof(double) + sizeof(int64_t));
    const auto run = [=](uint64_t piece, const Access& access) {
        const bool by_largest = p.mode == MAX || p.mode == MAX_DETERMINISTIC;
        if (by_largest) p.x.check(access, false, "x");
        slope.check(access, false, "dy");
        to.check(access, true, "dx");
        const int64_t width = p.planes_of_piece(), begin = static_cast<int64_t>(piece) * width,
                      planes = std::min(width, p.planes() - begin);
        Room<double> sums(static_cast<size_t>(planes * p.inputs));
        with_element(p.x.type, [&]<class E>(E) {
            const auto* const base = reinterpret_cast<const typename E::Type*>(p.x.address);
            each_plane(p, slope, piece,
                       [&](int64_t number, int64_t from, int64_t at, const Windows& windows) {
                           double* const sum = sums.data() + number * p.inputs;
                           const auto plane = [&](int64_t offset) {
                               return E::template get<double>(base[from + offset]);
                           };
                           for (size_t i = 0; i < windows.out.size(); ++i) {
                               const double d = get(slope, at + windows.out[i]);
                               if (by_largest) {
                                   double value;
                                   const int64_t place = largest(plane, windows.of(i), p.nan, value);
                                   if (place >= 0) sum[place] += d;
                               } else {
                                   for (const Windows::In& one : windows.of(i))
                                       sum[one.number] += d / windows.terms[i];
                               }
                           }
                       });
        });
        Room<int64_t> places(static_cast<size_t>(p.inputs));
        for (int64_t i = 0; i < p.inputs; ++i) places[static_cast<size_t>(i)] = p.offset_of(to, i);
        for (int64_t plane = begin; plane < begin + planes; ++plane) {
            const int64_t at = plane / p.x.extent[1] * to.stride[0] + plane % p.x.extent[1] * to.stride[1];
            const double* const sum = sums.data() + (plane - begin) * p.inputs;
            for (int64_t i = 0; i < p.inputs; ++i)
                blend(to, at + places[static_cast<size_t>(i)], sum[i], a, b);
        }
    };
    return submit(context, parts(p.planes(), p.planes_of_piece()), run, needed);
}

}  // namespace gpukernel::simgpu_libraries::cudnn
