// The loss of connectionist temporal classification, and its slope, by the forward and backward sums over all
// alignments (Graves, Fernandez, Gomez, Schmidhuber: ICML 2006, section 4), in logarithms and double
// precision.
//
// The slope is that by the activations before the softmax, however the probabilities are given.  A sequence
// that no alignment fits costs infinity; its slope is 0, or NaN where the descriptor asks for NaN.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "simgpu_libraries/cudnn/operations.h"

namespace gpukernel::simgpu_libraries::cudnn {

namespace {
constexpr int BLANK = 0, SOFTMAX = 1, PROPAGATE_NAN = 1, SKIP_OUT_OF_BOUNDS = 100;
constexpr int64_t MOST_PLACES = 1 << 24;  // of one sample: steps times places in its label with blanks
constexpr double NEVER = -std::numeric_limits<double>::infinity();

double log_sum(double a, double b) {
    if (a < b) std::swap(a, b);
    return b == NEVER ? a : a + std::log1p(std::exp(b - a));
}

struct Loss {
    Tensor probabilities, slopes;  // by step, sample, symbol
    uint64_t costs;
    CtcForm form;
    int64_t steps() const { return probabilities.extent[0]; }
    int64_t batch() const { return probabilities.extent[1]; }
    int64_t symbols() const { return probabilities.extent[2]; }
};

// One sample: its label, and the logarithms of its probabilities.
class Sample {
  public:
    Sample(const Loss& loss, int64_t number, const int* label, int64_t length, int64_t steps)
        : loss_(loss), number_(number), label_(label), places_(2 * length + 1), steps_(steps) {
        for (int64_t step = 0; step < steps && loss.form.normalization == SOFTMAX; ++step) {
            double most = NEVER, sum = 0;
            for (int64_t k = 0; k < loss.symbols(); ++k) most = std::max(most, given(step, k));
            for (int64_t k = 0; k < loss.symbols(); ++k) sum += std::exp(given(step, k) - most);
            scales_.push_back(most + std::log(sum));
        }
    }
    // Returns the cost, and adds the slope's part of each symbol: what `slope` is called with.
    template <class Slope>
    double run(Slope slope) const {
        if (!steps_) return places_ == 1 ? 0 : -NEVER;
        const auto at = [this](int64_t step, int64_t place) {
            return static_cast<size_t>(step * places_ + place);
        };
        Room<double> before(static_cast<size_t>(steps_ * places_), NEVER);
        for (int64_t step = 0; step < steps_; ++step)
            for (int64_t s = 0; s < places_; ++s) {
                double sum = step ? before[at(step - 1, s)] : s < 2 ? 0 : NEVER;
                if (step && s) sum = log_sum(sum, before[at(step - 1, s - 1)]);
                if (step && may_skip(s)) sum = log_sum(sum, before[at(step - 1, s - 2)]);
                before[at(step, s)] = sum + log_of(step, symbol(s));
            }
        const double likelihood = log_sum(before[at(steps_ - 1, places_ - 1)],
                                          places_ > 1 ? before[at(steps_ - 1, places_ - 2)] : NEVER);
        // From the end: what follows a place, without its own probability.
        Room<double> after(static_cast<size_t>(places_)), next(after.size(), NEVER),
            shares(static_cast<size_t>(loss_.symbols()));
        for (int64_t step = steps_ - 1; step >= 0; --step) {
            std::fill(shares.begin(), shares.end(), 0.0);
            for (int64_t s = 0; s < places_; ++s) {
                double sum =
                    step == steps_ - 1 ? (s + 2 >= places_ ? 0 : NEVER) : next[static_cast<size_t>(s)];
                if (step < steps_ - 1 && s + 1 < places_)
                    sum = log_sum(sum, next[static_cast<size_t>(s + 1)]);
                if (step < steps_ - 1 && s + 2 < places_ && may_skip(s + 2))
                    sum = log_sum(sum, next[static_cast<size_t>(s + 2)]);
                after[static_cast<size_t>(s)] = sum + log_of(step, symbol(s));
                if (likelihood != NEVER)
                    shares[static_cast<size_t>(symbol(s))] +=
                        std::exp(before[at(step, s)] + sum - likelihood);
            }
            std::swap(after, next);
            for (int64_t k = 0; k < loss_.symbols(); ++k)
                slope(step, k, likelihood, std::exp(log_of(step, k)) - shares[static_cast<size_t>(k)]);
        }
        return -likelihood;
    }

  private:
    double given(int64_t step, int64_t k) const {
        const Tensor& p = loss_.probabilities;
        return get(p, step * p.stride[0] + number_ * p.stride[1] + k * p.stride[2]);
    }
    double log_of(int64_t step, int64_t k) const {
        return loss_.form.normalization == SOFTMAX ? given(step, k) - scales_[static_cast<size_t>(step)]
                                                   : std::log(given(step, k));
    }
    int symbol(int64_t place) const { return place % 2 ? label_[place / 2] : BLANK; }
    // Whether the blank before a place may be left out: not between two that are alike.
    bool may_skip(int64_t place) const {
        return place % 2 && place > 1 && label_[place / 2] != label_[place / 2 - 1];
    }

    const Loss& loss_;
    const int64_t number_;
    const int* const label_;
    const int64_t places_, steps_;
    Room<double> scales_;
};

void compute(const Access& access, const Loss& loss, int64_t number, const int* label, int64_t length,
             int64_t steps) {
    loss.probabilities.check(access, false, "the probabilities");
    if (loss.slopes.address) loss.slopes.check(access, true, "the gradients");
    Tensor costs = loss.probabilities;
    costs.address = loss.costs;
    access.check(costs.address, static_cast<uint64_t>(loss.batch()) * element_bytes(costs.type), true,
                 "the costs");
    const auto place = [&](int64_t step, int64_t k) {
        return step * loss.slopes.stride[0] + number * loss.slopes.stride[1] + k * loss.slopes.stride[2];
    };
    const bool nan = loss.form.version < 9 && loss.form.gradients == PROPAGATE_NAN;
    const Sample sample(loss, number, label, length, steps);
    const double cost = sample.run([&](int64_t step, int64_t k, double likelihood, double slope) {
        if (!loss.slopes.address) return;
        if (likelihood == NEVER) slope = nan ? std::numeric_limits<double>::quiet_NaN() : 0;
        put(loss.slopes, place(step, k), slope);
    });
    put(costs, number, cost);
    if (!loss.slopes.address || (loss.form.version == 9 && loss.form.gradients == SKIP_OUT_OF_BOUNDS)) return;
    for (int64_t step = steps; step < loss.steps(); ++step)
        for (int64_t k = 0; k < loss.symbols(); ++k) put(loss.slopes, place(step, k), 0);
}

bool valid(const Loss& loss) {
    const auto is_real = [](int type) {
        return type == FLOAT || type == DOUBLE || type == HALF || type == BFLOAT16;
    };
    return loss.probabilities.valid() && loss.probabilities.rank == 3 && is_real(loss.probabilities.type) &&
           loss.costs &&
           (!loss.slopes.address || (loss.slopes.valid() && loss.slopes.same_extents(loss.probabilities) &&
                                     is_real(loss.slopes.type)));
}
bool valid(const Loss& loss, const int* label, int64_t length, int64_t steps) {
    return steps >= 0 && steps <= loss.steps() && std::all_of(label, label + length, [&](int symbol) {
               return symbol > BLANK && symbol < loss.symbols();
           });
}
bool too_long(int64_t length, int64_t steps) { return steps * (2 * length + 1) > MOST_PLACES; }
Loss loss_of(Layout layout, uint64_t probabilities, uint64_t costs, Layout slopes_layout, uint64_t slopes,
             const CtcForm* form) {
    return {tensor_of(layout, probabilities),
            slopes && slopes_layout ? tensor_of(slopes_layout, slopes) : Tensor{}, costs, *form};
}
}  // namespace

int ctc_loss(Context context, Layout layout, uint64_t probabilities, const Ints& labels,
             const Ints& label_lengths, const Ints& input_lengths, uint64_t costs, Layout slopes_layout,
             uint64_t slopes, int, const CtcForm* form, uint64_t, size_t) {
    const Loss loss = loss_of(layout, probabilities, costs, slopes_layout, slopes, form);
    if (!valid(loss)) return BAD_PARAM;
    const Room<int> all(labels.begin(), labels.end()), lengths(label_lengths.begin(), label_lengths.end()),
        steps(input_lengths.begin(), input_lengths.end());
    Room<int64_t> begins;
    int64_t begin = 0, most = 0;
    for (size_t i = 0; i < label_lengths.size(); ++i) {
        if (!valid(loss, labels.data() + begin, label_lengths[i], input_lengths[i])) return BAD_PARAM;
        if (too_long(label_lengths[i], input_lengths[i])) return refused(context.name, "a sequence so long");
        begins.push_back(begin), begin += label_lengths[i];
        most = std::max(most, static_cast<int64_t>(input_lengths[i]) * (2 * int64_t{label_lengths[i]} + 1));
    }
    return submit(
        context, begins.size(),
        [=](uint64_t number, const Access& access) {
            compute(access, loss, static_cast<int64_t>(number), all.data() + begins[number], lengths[number],
                    steps[number]);
        },
        static_cast<uint64_t>(most) * sizeof(double));
}

// The labels and their lengths lie on the device, and may change until the work begins.
int ctc_loss_v8(Context context, int, const CtcForm* form, Layout layout, uint64_t probabilities,
                uint64_t labels, uint64_t label_lengths, uint64_t input_lengths, uint64_t costs,
                Layout slopes_layout, uint64_t slopes, size_t, uint64_t) {
    const Loss loss = loss_of(layout, probabilities, costs, slopes_layout, slopes, form);
    if (!valid(loss)) return BAD_PARAM;
    if (too_long(form->longest, loss.steps())) return refused(context.name, "a sequence so long");
    return submit(
        context, static_cast<uint64_t>(loss.batch()),
        [=](uint64_t number, const Access& access) {
            uint64_t begin = 0;
            int length = 0;
            for (uint64_t i = 0; i <= number; ++i) {
                begin += static_cast<uint64_t>(length);
                length = access.read<int>(label_lengths + i * sizeof(int), "the lengths of the labels");
                if (length < 0 || length > loss.form.longest)
                    throw OutOfBounds{label_lengths + i * sizeof(int), sizeof(int), "the length of a label"};
            }
            const int steps =
                access.read<int>(input_lengths + number * sizeof(int), "the lengths of the sequences");
            const uint64_t from = labels + begin * sizeof(int),
                           bytes = static_cast<uint64_t>(length) * sizeof(int);
            access.check(from, bytes, false, "the labels");
            Room<int> label(static_cast<size_t>(length));
            if (length) std::memcpy(label.data(), reinterpret_cast<const void*>(from), bytes);
            if (!valid(loss, label.data(), length, steps))
                throw OutOfBounds{from, bytes, "a label or a length"};
            compute(access, loss, static_cast<int64_t>(number), label.data(), length, steps);
        },
        static_cast<uint64_t>(loss.steps() * (2 * form->longest + 1)) * sizeof(double));
}

int ctc_workspace(Context, Layout, Layout, const Ints&, const Ints&, const Ints&, int, const CtcForm*,
                  Result bytes) {
    return bytes.set(0);
}
int ctc_workspace_v8(Context, int, const CtcForm*, Layout, Layout, Result bytes) { return bytes.set(0); }

}  // namespace gpukernel::simgpu_libraries::cudnn
