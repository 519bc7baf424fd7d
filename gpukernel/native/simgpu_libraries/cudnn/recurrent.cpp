// Recurrent layers: plain cells, LSTM and GRU, in several layers and both directions, and their gradients.
//
// One step of one layer and direction is a submission, cut into stretches of the batch.  What the way back
// needs of each step is a record in the reserve (in the workspace where nothing comes back):
//
//     gates[G * H] c[H] h[H] q[H] dgates[G * H] dq[H] dy[H]
//
// c is an LSTM's cell; q is what a GRU's reset gate multiplies; dy is the gradient from the layer above.  The
// weights lie as cuDNN's do: the matrices of all layers, each layer's for the input by gates and then those
// for the state, and behind them the biases in the same order.
#include "libraries/cudnn/recurrent.h"

#include <memory>
#include <vector>

#include "simgpu_libraries/cudnn/gemm.h"
#include "simgpu_libraries/cudnn/operations.h"

namespace gpukernel::simgpu_libraries::cudnn {

namespace {
constexpr int64_t MOST_UNITS = 1 << 14, MOST_SUBMISSIONS = 1 << 16, ROWS = 16, MOST_ROWS = 256;
constexpr double MOST_OF_PIECE = 1e9;  // products, which nothing can pause
constexpr int DOUBLE_BIAS = 2, NO_BIAS = 0, LINEAR = 0;

// Where everything of a call lies.
struct Recurrent {
    RecurrentForm form;
    int64_t gates = 1, hidden = 0, inputs = 0, directions = 1, layers = 1, steps = 0, batch = 0;
    bool biased = false;
    Room<int32_t> lengths;
    int32_t x_layout = 0, y_layout = 0;
    bool fills = false;
    uint64_t fill = 0;
    uint64_t x = 0, y = 0, hx = 0, hy = 0, cx = 0, cy = 0, weights = 0, records = 0;
    // Of the way back.
    uint64_t dy = 0, dx = 0, dhy = 0, dhx = 0, dcy = 0, dcx = 0, dweights = 0, carried = 0;

    int64_t pseudo_layers() const { return layers * directions; }
    int64_t inputs_of(int64_t layer) const { return layer / directions ? hidden * directions : inputs; }
    // In elements: where a layer's matrices begin, and its biases; behind all of them with the number of
    // layers.
    int64_t matrices(int64_t layer) const {
        int64_t at = 0;
        for (int64_t l = 0; l < layer; ++l) at += gates * hidden * (inputs_of(l) + hidden);
        return at;
    }
    int64_t biases(int64_t layer) const {
        return matrices(pseudo_layers()) + (biased ? layer * 2 * gates * hidden : 0);
    }
    int64_t record() const { return (2 * gates + 5) * hidden; }
    int64_t record_at(int64_t layer, int64_t step, int64_t row) const {
        return ((layer * steps + step) * batch + row) * record();
    }
    int64_t all_records() const { return pseudo_layers() * steps * batch * record(); }
    int64_t all_carried() const { return pseudo_layers() * batch * 2 * hidden; }
    int64_t place(int32_t layout, int64_t step, int64_t row, int64_t width) const {
        return (layout == BATCH_OUTSIDE ? row * steps + step : step * batch + row) * width;
    }
    int64_t state(int64_t layer, int64_t row) const { return (layer * batch + row) * hidden; }
    // Which step of a sequence a direction takes at `turn`; -1 behind its end.
    int64_t step_of(int64_t layer, int64_t turn, int64_t row) const {
        const int64_t length = lengths[static_cast<size_t>(row)];
        return turn >= length ? -1 : layer % directions ? length - 1 - turn : turn;
    }
};

int described(const Context& context, const RecurrentForm* form, Recurrent& r) {
    r.form = *form;
    if (form->type != FLOAT && form->type != DOUBLE)
        return refused(context.name, "a recurrent layer of that type");
    if (form->input_mode != LINEAR)
        return refused(context.name, "a recurrent layer that skips its input's product");
    if (form->projected && form->projected != form->hidden)
        return refused(context.name, "a recurrent projection");
    if (form->bias != DOUBLE_BIAS && form->bias != NO_BIAS)
        return refused(context.name, "a recurrent layer with one bias");
    if (form->dropout.states && form->dropout.dropout > 0 && form->layers > 1)
        return refused(context.name, "dropout between recurrent layers");
    if (form->hidden > MOST_UNITS || form->inputs > MOST_UNITS || form->layers > 256)
        return refused(context.name, "so large a recurrent layer");
    if (form->hidden <= 0 || form->inputs <= 0 || form->layers <= 0) return BAD_PARAM;
    r.gates = form->cell == CELL_LSTM ? 4 : form->cell == CELL_GRU ? 3 : 1;
    r.hidden = form->hidden, r.inputs = form->inputs, r.directions = form->directions(),
    r.layers = form->layers;
    r.biased = form->bias == DOUBLE_BIAS;
    return SUCCESS;
}
int described(const Context& context, const RecurrentForm* form, const SequencesForm* x, Recurrent& r) {
    if (const int status = described(context, form, r)) return status;
    if (x->layout == STEPS_PACKED) return refused(context.name, "packed sequences");
    if (x->type != form->type || x->vector != form->inputs || x->batch <= 0 || x->steps <= 0 ||
        static_cast<int64_t>(x->lengths.size()) != x->batch)
        return BAD_PARAM;
    r.steps = x->steps, r.batch = x->batch, r.x_layout = x->layout;
    r.lengths.assign(x->lengths.begin(), x->lengths.end());
    const auto products = static_cast<double>(r.gates * r.hidden) *
                          static_cast<double>(std::max(r.inputs, r.hidden * r.directions) + r.hidden);
    if (products * ROWS > MOST_OF_PIECE || products * static_cast<double>(r.batch) > 4 * MOST_OF_PIECE)
        return refused(context.name, "so large a recurrent layer");
    if (r.steps * r.pseudo_layers() > MOST_SUBMISSIONS || (static_cast<__int128>(r.all_records()) >> 40))
        return refused(context.name, "so long a sequence");
    return SUCCESS;
}
int described(const Context& context, const RecurrentForm* form, const SequencesForm* x,
              const SequencesForm* y, Recurrent& r) {
    if (const int status = described(context, form, x, r)) return status;
    if (y->layout == STEPS_PACKED) return refused(context.name, "packed sequences");
    if (y->type != form->type || y->vector != r.hidden * r.directions || y->steps != x->steps ||
        y->lengths != x->lengths)
        return BAD_PARAM;
    r.y_layout = y->layout, r.fills = y->fills, r.fill = y->fill;
    return SUCCESS;
}

template <class T>
class Layers {
  public:
    explicit Layers(const Recurrent& r) : r_(r) {}

    int submit_each(const Context& context, const std::shared_ptr<Layers>& self, bool back,
                    void (Layers::*step)(int64_t layer, int64_t turn, int64_t first, int64_t count) const,
                    int64_t rows, bool writes_weights) const {
        for (int64_t i = 0; i < r_.pseudo_layers(); ++i)
            for (int64_t k = 0; k < r_.steps; ++k) {
                // Backwards the last layer comes first; of one layer the first direction does in any case.
                const int64_t level = back ? r_.layers - 1 - i / r_.directions : i / r_.directions;
                const int64_t layer = level * r_.directions + i % r_.directions,
                              turn = back ? r_.steps - 1 - k : k;
                const int status =
                    submit(context, parts(r_.batch, rows),
                           [self, layer, turn, step, rows, back, writes_weights](uint64_t piece,
                                                                                 const Access& access) {
                               self->check(access, back, writes_weights);
                               const int64_t first = static_cast<int64_t>(piece) * rows;
                               ((*self).*step)(layer, turn, first, std::min(rows, self->r_.batch - first));
                           });
                if (status) return status;
            }
        return SUCCESS;
    }

    void forward(int64_t layer, int64_t turn, int64_t first, int64_t count) const {
        const int64_t H = r_.hidden, G = r_.gates, width = r_.inputs_of(layer);
        Room<T> x(static_cast<size_t>(count * width)), h(static_cast<size_t>(count * H)),
            u(static_cast<size_t>(count * G * H)), v(u.size());
        for (int64_t i = 0; i < count; ++i) {
            input(layer, r_.step_of(layer, turn, first + i), first + i, x.data() + i * width);
            before(layer, turn, first + i, h.data() + i * H);
        }
        const T* const W = weights(layer);
        gemm<T>('T', 'N', G * H, count, width, W, width, x.data(), width, T(0), v.data(), G * H);
        gemm<T>('T', 'N', G * H, count, H, W + G * H * width, H, h.data(), H, T(0), u.data(), G * H);
        const bool top = layer / r_.directions == r_.layers - 1;
        for (int64_t i = 0; i < count; ++i) {
            const int64_t row = first + i, step = r_.step_of(layer, turn, row);
            T* const to = top ? at<T>(r_.y) : nullptr;
            const auto place = [&](int64_t t) {
                return r_.place(r_.y_layout, t, row, H * r_.directions) + layer % r_.directions * H;
            };
            if (step < 0) {
                T fill{};
                std::memcpy(&fill, &r_.fill, sizeof fill);
                if (top && r_.fills) std::fill_n(to + place(turn), H, fill);
                if (!r_.lengths[static_cast<size_t>(row)] && !turn) copy_state(layer, row);
                continue;
            }
            T* const own = record(layer, step, row);
            T *const gates = own, *const c = own + G * H, *const state = c + H, *const q = state + H;
            T* const bu = u.data() + i * G * H;
            T* const bv = v.data() + i * G * H;
            if (r_.biased) {
                const T* const b = at<T>(r_.weights) + r_.biases(layer);
                for (int64_t j = 0; j < G * H; ++j) bv[j] += b[j], bu[j] += b[G * H + j];
            }
            const T* const c_before =
                turn ? record(layer, r_.step_of(layer, turn - 1, row), row) + G * H : nullptr;
            for (int64_t j = 0; j < H; ++j) {
                const auto sum = [&](int64_t gate) { return bv[gate * H + j] + bu[gate * H + j]; };
                switch (r_.form.cell) {
                    case CELL_LSTM: {
                        const T in = sigmoid(sum(0)), forget = sigmoid(sum(1)), fresh = std::tanh(sum(2)),
                                out = sigmoid(sum(3));
                        const T old = c_before ? c_before[j]
                                      : r_.cx  ? at<T>(r_.cx)[r_.state(layer, row) + j]
                                               : T(0);
                        gates[j] = in, gates[H + j] = forget, gates[2 * H + j] = fresh,
                        gates[3 * H + j] = out;
                        c[j] = forget * old + in * fresh;
                        state[j] = out * std::tanh(c[j]);
                        break;
                    }
                    case CELL_GRU: {
                        const T reset = sigmoid(sum(0)), update = sigmoid(sum(1));
                        q[j] = bu[2 * H + j];
                        const T fresh = std::tanh(bv[2 * H + j] + reset * q[j]);
                        gates[j] = reset, gates[H + j] = update, gates[2 * H + j] = fresh;
                        state[j] = (1 - update) * fresh + update * h[static_cast<size_t>(i * H + j)];
                        break;
                    }
                    default:
                        state[j] = gates[j] =
                            r_.form.cell == CELL_TANH ? std::tanh(sum(0)) : std::max(sum(0), T(0));
                }
            }
            if (top) std::copy_n(state, H, to + place(step));
            if (turn + 1 == r_.lengths[static_cast<size_t>(row)]) {
                if (r_.hy) std::copy_n(state, H, at<T>(r_.hy) + r_.state(layer, row));
                if (r_.cy && r_.form.cell == CELL_LSTM)
                    std::copy_n(c, H, at<T>(r_.cy) + r_.state(layer, row));
            }
        }
    }

    void to_data(int64_t layer, int64_t turn, int64_t first, int64_t count) const {
        const int64_t H = r_.hidden, G = r_.gates, width = r_.inputs_of(layer);
        Room<T> h(static_cast<size_t>(H)), through(static_cast<size_t>(count * H)),
            for_x(static_cast<size_t>(count * G * H)), for_h(for_x.size()),
            dx(static_cast<size_t>(count * width)), dh(static_cast<size_t>(count * H));
        const bool top = layer / r_.directions == r_.layers - 1;
        for (int64_t i = 0; i < count; ++i) {
            const int64_t row = first + i, step = r_.step_of(layer, turn, row);
            if (step < 0) continue;
            T* const own = record(layer, step, row);
            T *const gates = own, *const c = own + G * H, *const q = c + 2 * H, *const dgates = q + H,
                     *const dq = dgates + G * H, *const above = dq + H;
            T* const carry = at<T>(r_.carried) + 2 * r_.state(layer, row);
            if (turn + 1 == r_.lengths[static_cast<size_t>(row)])
                for (int64_t j = 0; j < H; ++j) {
                    carry[j] = r_.dhy ? at<T>(r_.dhy)[r_.state(layer, row) + j] : T(0);
                    carry[H + j] = r_.dcy ? at<T>(r_.dcy)[r_.state(layer, row) + j] : T(0);
                }
            const T* const slope = top ? at<T>(r_.dy) + r_.place(r_.y_layout, step, row, H * r_.directions) +
                                             layer % r_.directions * H
                                       : above;
            before(layer, turn, row, h.data());
            const T* const c_before =
                turn ? record(layer, r_.step_of(layer, turn - 1, row), row) + G * H : nullptr;
            for (int64_t j = 0; j < H; ++j) {
                const T d = slope[j] + carry[j];
                switch (r_.form.cell) {
                    case CELL_LSTM: {
                        const T in = gates[j], forget = gates[H + j], fresh = gates[2 * H + j],
                                out = gates[3 * H + j];
                        const T shape = std::tanh(c[j]), dc = d * out * (1 - shape * shape) + carry[H + j];
                        const T old = c_before ? c_before[j]
                                      : r_.cx  ? at<T>(r_.cx)[r_.state(layer, row) + j]
                                               : T(0);
                        dgates[j] = dc * fresh * in * (1 - in);
                        dgates[H + j] = dc * old * forget * (1 - forget);
                        dgates[2 * H + j] = dc * in * (1 - fresh * fresh);
                        dgates[3 * H + j] = d * shape * out * (1 - out);
                        carry[H + j] = dc * forget;
                        break;
                    }
                    case CELL_GRU: {
                        const T reset = gates[j], update = gates[H + j], fresh = gates[2 * H + j];
                        const T dn = d * (1 - update) * (1 - fresh * fresh);
                        dgates[j] = dn * q[j] * reset * (1 - reset);
                        dgates[H + j] = d * (h[static_cast<size_t>(j)] - fresh) * update * (1 - update);
                        dgates[2 * H + j] = dn;
                        dq[j] = dn * reset;
                        through[static_cast<size_t>(i * H + j)] = d * update;
                        break;
                    }
                    default:
                        dgates[j] = d * (r_.form.cell == CELL_TANH ? 1 - gates[j] * gates[j]
                                         : gates[j] > 0            ? 1
                                                                   : 0);
                }
            }
            std::copy_n(dgates, G * H, for_x.data() + i * G * H);
            of_state(own, for_h.data() + i * G * H);
        }
        const T* const W = weights(layer);
        gemm<T>('N', 'N', width, count, G * H, W, width, for_x.data(), G * H, T(0), dx.data(), width);
        gemm<T>('N', 'N', H, count, G * H, W + G * H * width, H, for_h.data(), G * H, T(0), dh.data(), H);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t row = first + i, step = r_.step_of(layer, turn, row);
            const bool adds = layer % r_.directions;  // the first direction has set it
            if (step < 0) {
                if (layer < r_.directions && !adds && r_.dx)
                    std::fill_n(at<T>(r_.dx) + r_.place(r_.x_layout, turn, row, width), width, T(0));
                if (!r_.lengths[static_cast<size_t>(row)] && !turn) pass_back(layer, row);
                continue;
            }
            T* const carry = at<T>(r_.carried) + 2 * r_.state(layer, row);
            for (int64_t j = 0; j < H; ++j)
                carry[j] = dh[static_cast<size_t>(i * H + j)] + through[static_cast<size_t>(i * H + j)];
            for (int64_t j = 0; j < width; ++j) {
                T* to = nullptr;
                if (layer >= r_.directions)
                    to = record((layer / r_.directions - 1) * r_.directions + j / H, step, row) +
                         (2 * G + 4) * H + j % H;
                else if (r_.dx)
                    to = at<T>(r_.dx) + r_.place(r_.x_layout, step, row, width) + j;
                if (to) *to = (adds ? *to : T(0)) + dx[static_cast<size_t>(i * width + j)];
            }
            if (!turn) {
                if (r_.dhx) std::copy_n(carry, H, at<T>(r_.dhx) + r_.state(layer, row));
                if (r_.dcx && r_.form.cell == CELL_LSTM)
                    std::copy_n(carry + H, H, at<T>(r_.dcx) + r_.state(layer, row));
            }
        }
    }

    // All of the batch in one piece: its products are added up in order.
    void to_weights(int64_t layer, int64_t turn, int64_t first, int64_t count) const {
        for (int64_t done = 0; done < count; done += MOST_ROWS)
            add_weights(layer, turn, first + done, std::min(MOST_ROWS, count - done));
    }
    void add_weights(int64_t layer, int64_t turn, int64_t first, int64_t count) const {
        const int64_t H = r_.hidden, G = r_.gates, width = r_.inputs_of(layer);
        Room<T> x(static_cast<size_t>(count * width)), h(static_cast<size_t>(count * H)),
            for_x(static_cast<size_t>(count * G * H)), for_h(for_x.size());
        for (int64_t i = 0; i < count; ++i) {
            const int64_t row = first + i, step = r_.step_of(layer, turn, row);
            if (step < 0) continue;
            input(layer, step, row, x.data() + i * width);
            before(layer, turn, row, h.data() + i * H);
            const T* const own = record(layer, step, row);
            std::copy_n(own + (G + 3) * H, G * H, for_x.data() + i * G * H);
            of_state(own, for_h.data() + i * G * H);
        }
        T* const W = at<T>(r_.dweights) + r_.matrices(layer);
        gemm<T>('N', 'T', width, G * H, count, x.data(), width, for_x.data(), G * H, T(1), W, width);
        gemm<T>('N', 'T', H, G * H, count, h.data(), H, for_h.data(), G * H, T(1), W + G * H * width, H);
        if (!r_.biased) return;
        T* const b = at<T>(r_.dweights) + r_.biases(layer);
        for (int64_t i = 0; i < count; ++i)
            for (int64_t j = 0; j < G * H; ++j)
                b[j] += for_x[static_cast<size_t>(i * G * H + j)],
                    b[G * H + j] += for_h[static_cast<size_t>(i * G * H + j)];
    }

    void check(const Access& access, bool back, bool writes_weights) const {
        const auto whole = [&](uint64_t address, int64_t elements, bool writing, const char* what) {
            if (address) access.check(address, static_cast<uint64_t>(elements) * sizeof(T), writing, what);
        };
        const int64_t places = r_.steps * r_.batch, states = r_.pseudo_layers() * r_.batch * r_.hidden,
                      all = r_.biases(r_.pseudo_layers());
        whole(r_.x, places * r_.inputs, false, "x");
        whole(r_.y, places * r_.hidden * r_.directions, !back, "y");
        whole(r_.weights, all, false, "the weights");
        whole(r_.dweights, all, writes_weights, "the weights' gradient");
        whole(r_.records, r_.all_records(), true, "the reserve or the workspace");
        whole(r_.carried, r_.all_carried(), true, "the workspace");
        whole(r_.dy, places * r_.hidden * r_.directions, false, "dy");
        whole(r_.dx, places * r_.inputs, true, "dx");
        for (const auto& [address, writing] : {std::pair{r_.hx, false},
                                               {r_.cx, false},
                                               {r_.dhy, false},
                                               {r_.dcy, false},
                                               {r_.hy, true},
                                               {r_.cy, true},
                                               {r_.dhx, true},
                                               {r_.dcx, true}})
            whole(address, states, writing, "a state");
    }

  private:
    template <class U>
    static U* at(uint64_t address) {
        return reinterpret_cast<U*>(address);
    }
    static T sigmoid(T x) { return 1 / (1 + std::exp(-x)); }
    T* record(int64_t layer, int64_t step, int64_t row) const {
        return at<T>(r_.records) + r_.record_at(layer, step, row);
    }
    const T* weights(int64_t layer) const { return at<T>(r_.weights) + r_.matrices(layer); }
    // What a layer reads at a step; behind the end of a sequence it stays 0.
    void input(int64_t layer, int64_t step, int64_t row, T* to) const {
        if (step < 0) return;
        if (layer < r_.directions) {
            std::copy_n(at<T>(r_.x) + r_.place(r_.x_layout, step, row, r_.inputs), r_.inputs, to);
            return;
        }
        for (int64_t d = 0; d < r_.directions; ++d)
            std::copy_n(record((layer / r_.directions - 1) * r_.directions + d, step, row) +
                            (r_.gates + 1) * r_.hidden,
                        r_.hidden, to + d * r_.hidden);
    }
    // The state before a turn.
    void before(int64_t layer, int64_t turn, int64_t row, T* to) const {
        const int64_t step = turn ? r_.step_of(layer, turn - 1, row) : -1;
        if (step >= 0)
            std::copy_n(record(layer, step, row) + (r_.gates + 1) * r_.hidden, r_.hidden, to);
        else if (!turn && r_.hx)
            std::copy_n(at<T>(r_.hx) + r_.state(layer, row), r_.hidden, to);
        else
            std::fill_n(to, r_.hidden, T(0));
    }
    // The gradients that go to the state's product, which a GRU's last gate has changed.
    void of_state(const T* own, T* to) const {
        const int64_t H = r_.hidden, G = r_.gates;
        std::copy_n(own + (G + 3) * H, G * H, to);
        if (r_.form.cell == CELL_GRU) std::copy_n(own + (2 * G + 3) * H, H, to + 2 * H);
    }
    // A sequence of no steps ends with the state that it began with.
    void copy_state(int64_t layer, int64_t row) const {
        const auto copy = [&](uint64_t from, uint64_t to) {
            for (int64_t j = r_.state(layer, row); to && j < r_.state(layer, row) + r_.hidden; ++j)
                at<T>(to)[j] = from ? at<T>(from)[j] : T(0);
        };
        copy(r_.hx, r_.hy), copy(r_.cx, r_.cy);
    }
    void pass_back(int64_t layer, int64_t row) const {
        const auto copy = [&](uint64_t from, uint64_t to) {
            for (int64_t j = r_.state(layer, row); to && j < r_.state(layer, row) + r_.hidden; ++j)
                at<T>(to)[j] = from ? at<T>(from)[j] : T(0);
        };
        copy(r_.dhy, r_.dhx), copy(r_.dcy, r_.dcx);
    }

    Recurrent r_;
};

template <class T>
int start(const Context& context, const Recurrent& r, int direction) {
    auto all = std::make_shared<Layers<T>>(r);
    if (direction == 0) return all->submit_each(context, all, false, &Layers<T>::forward, ROWS, false);
    if (direction == 1) return all->submit_each(context, all, true, &Layers<T>::to_data, ROWS, false);
    return all->submit_each(context, all, true, &Layers<T>::to_weights, r.batch, true);
}
int start(const Context& context, const Recurrent& r, int direction) {
    return r.form.type == DOUBLE ? start<double>(context, r, direction) : start<float>(context, r, direction);
}
size_t element(const Recurrent& r) { return element_bytes(r.form.type); }
size_t record_bytes(const Recurrent& r) { return static_cast<size_t>(r.all_records()) * element(r); }
size_t carried_bytes(const Recurrent& r) { return static_cast<size_t>(r.all_carried()) * element(r); }
size_t weight_bytes(const Recurrent& r) {
    return static_cast<size_t>(r.biases(r.pseudo_layers())) * element(r);
}
// The states' descriptors say nothing that the layers do not.
bool fits(const Recurrent& r, Layout layout) {
    if (!layout) return true;
    const Tensor states = tensor_of(layout, 0);
    return states.valid() && states.rank == 3 && states.extent[0] == r.pseudo_layers() &&
           states.extent[1] == r.batch && states.extent[2] == r.hidden && states.type == r.form.type &&
           states.stride[2] == 1 && states.stride[1] == r.hidden && states.stride[0] == r.hidden * r.batch;
}
}  // namespace

int recurrent_forward(Context context, const RecurrentForm* form, int mode, uint64_t,
                      const SequencesForm* x_form, uint64_t x, const SequencesForm* y_form, uint64_t y,
                      Layout h, uint64_t hx, uint64_t hy, Layout c, uint64_t cx, uint64_t cy,
                      size_t weight_size, uint64_t weights, size_t work_size, uint64_t work,
                      size_t reserve_size, uint64_t reserve) {
    Recurrent r;
    if (const int status = described(context, form, x_form, y_form, r)) return status;
    const bool trains = mode == 1;
    if (!x || !y || !weights || weight_size < weight_bytes(r) || !fits(r, h) || !fits(r, c) ||
        ((hx || hy) && !h) || ((cx || cy) && form->cell == CELL_LSTM && !c) ||
        (trains ? !reserve || reserve_size < record_bytes(r) : !work || work_size < record_bytes(r)))
        return BAD_PARAM;
    r.x = x, r.y = y, r.hx = hx, r.hy = hy, r.weights = weights, r.records = trains ? reserve : work;
    if (form->cell == CELL_LSTM) r.cx = cx, r.cy = cy;
    return start(context, r, 0);
}

int recurrent_to_data(Context context, const RecurrentForm* form, uint64_t, const SequencesForm* y_form,
                      uint64_t y, uint64_t dy, const SequencesForm* x_form, uint64_t dx, Layout h,
                      uint64_t hx, uint64_t dhy, uint64_t dhx, Layout c, uint64_t cx, uint64_t dcy,
                      uint64_t dcx, size_t weight_size, uint64_t weights, size_t work_size, uint64_t work,
                      size_t reserve_size, uint64_t reserve) {
    Recurrent r;
    if (const int status = described(context, form, x_form, y_form, r)) return status;
    if (!dy || !weights || weight_size < weight_bytes(r) || !fits(r, h) || !fits(r, c) || !reserve ||
        reserve_size < record_bytes(r) || !work || work_size < carried_bytes(r) ||
        ((hx || dhy || dhx) && !h) || ((cx || dcy || dcx) && form->cell == CELL_LSTM && !c))
        return BAD_PARAM;
    r.y = y, r.dy = dy, r.dx = dx, r.hx = hx, r.dhy = dhy, r.dhx = dhx, r.weights = weights;
    if (form->cell == CELL_LSTM) r.cx = cx, r.dcy = dcy, r.dcx = dcx;
    r.records = reserve, r.carried = work;
    return start(context, r, 1);
}

int recurrent_to_weights(Context context, const RecurrentForm* form, int mode, uint64_t,
                         const SequencesForm* x_form, uint64_t x, Layout h, uint64_t hx,
                         const SequencesForm* y_form, uint64_t, size_t weight_size, uint64_t dweights, size_t,
                         uint64_t, size_t reserve_size, uint64_t reserve) {
    Recurrent r;
    if (const int status = described(context, form, x_form, y_form, r)) return status;
    if (mode) return refused(context.name, "gradients that are set and not added");
    if (!x || !dweights || weight_size < weight_bytes(r) || !fits(r, h) || (hx && !h) || !reserve ||
        reserve_size < record_bytes(r))
        return BAD_PARAM;
    r.x = x, r.hx = hx, r.dweights = dweights, r.records = reserve;
    return start(context, r, 2);
}

}  // namespace gpukernel::simgpu_libraries::cudnn

// --- what is asked about them ---

namespace gpukernel::libraries::cudnn {

using namespace simgpu_libraries::cudnn;

GPUKERNEL_EXPORT int cudnnGetRNNWeightSpaceSize(void* handle, const RecurrentForm* form, size_t* bytes) {
    const Handle* const own = handle_of(handle);
    Recurrent r;
    if (!own || !form || !bytes) return BAD_PARAM;
    const int status = described({*own, "cudnnGetRNNWeightSpaceSize"}, form, r);
    if (!status) *bytes = weight_bytes(r);
    return status;
}
GPUKERNEL_EXPORT int cudnnGetRNNTempSpaceSizes(void* handle, const RecurrentForm* form, int mode,
                                               const SequencesForm* x, size_t* workspace, size_t* reserve) {
    const Handle* const own = handle_of(handle);
    Recurrent r;
    if (!own || !form || !x) return BAD_PARAM;
    if (const int status = described({*own, "cudnnGetRNNTempSpaceSizes"}, form, x, r)) return status;
    if (workspace) *workspace = mode == 1 ? carried_bytes(r) : record_bytes(r);
    if (reserve) *reserve = mode == 1 ? record_bytes(r) : 0;
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnGetRNNWeightParams(void* handle, const RecurrentForm* form, int32_t layer, size_t,
                                             const void* weights, int32_t number, TensorLayout* m,
                                             void** m_at, TensorLayout* b, void** b_at) {
    const Handle* const own = handle_of(handle);
    Recurrent r;
    if (!own || !form || !m || !m_at || !b || !b_at) return BAD_PARAM;
    if (const int status = described({*own, "cudnnGetRNNWeightParams"}, form, r)) return status;
    if (layer < 0 || layer >= r.pseudo_layers() || number < 0 || number >= 2 * r.gates) return BAD_PARAM;
    const int64_t width = number < r.gates ? r.inputs_of(layer) : r.hidden, H = r.hidden;
    const int64_t matrix = r.matrices(layer) +
                           (number < r.gates ? number * H * width
                                             : r.gates * H * r.inputs_of(layer) + (number - r.gates) * H * H);
    auto* const base = const_cast<char*>(static_cast<const char*>(weights));
    const auto of = [&](int64_t columns) {
        const auto h = static_cast<int32_t>(H), w = static_cast<int32_t>(columns);
        return TensorLayout{form->type, 3, {1, h, w}, {h * w, w, 1}};
    };
    *m = of(width), *m_at = base + matrix * static_cast<int64_t>(element(r));
    *b = r.biased ? of(1) : TensorLayout{};
    *b_at = r.biased ? base + (r.biases(layer) + number * H) * static_cast<int64_t>(element(r)) : nullptr;
    return SUCCESS;
}

// There is no dropout between layers, so that its states are empty; a descriptor without states has none.
GPUKERNEL_EXPORT int cudnnDropoutGetStatesSize(void* handle, size_t* bytes) {
    return handle_of(handle) && bytes ? (*bytes = 64, SUCCESS) : BAD_PARAM;
}
GPUKERNEL_EXPORT int cudnnSetDropoutDescriptor(DropoutForm* form, void* handle, float dropout, void* states,
                                               size_t bytes, unsigned long long seed) {
    if (!form || !handle_of(handle) || !(dropout >= 0 && dropout <= 1)) return BAD_PARAM;
    *form = {static_cast<double>(dropout), reinterpret_cast<uint64_t>(states), bytes, seed};
    return SUCCESS;
}
GPUKERNEL_EXPORT int cudnnRestoreDropoutDescriptor(DropoutForm* form, void* handle, float dropout,
                                                   void* states, size_t bytes, unsigned long long seed) {
    return cudnnSetDropoutDescriptor(form, handle, dropout, states, bytes, seed);
}

}  // namespace gpukernel::libraries::cudnn
