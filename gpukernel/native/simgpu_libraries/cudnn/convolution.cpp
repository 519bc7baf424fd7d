// A convolution is cut into tiles of its result.  Each gathers what it needs of the input into a matrix,
// whose columns are places of the result and whose rows are its terms (a channel and a place in the filter),
// and multiplies it with the filter: OpenBLAS's work.
//
// The gradient to the data is the same with other geometry: places of the result that have the same remainder
// by the stride see the same part of the filter, so that no term is a product with nothing.  The gradient to
// the filter sums over the places, a stretch at a time and in order, so that its result is the same every
// time.
#include "simgpu_libraries/cudnn/convolution.h"

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "simgpu_libraries/cudnn/gemm.h"

namespace gpukernel::simgpu_libraries::cudnn {

namespace {
constexpr int64_t MOST_TERMS = 1 << 18, MOST_TAPS = 1 << 14, MOST_STRETCHES = 1 << 14;
constexpr double MOST_PRODUCTS = 24e6;  // of a piece: about a millisecond
using Place = std::array<int64_t, MOST_SPATIAL>;

// One place in the filter, as a group of places of the result sees it.
struct Tap {
    Place in;    // what is added to the place in the input
    int64_t at;  // its elements' distance in the filter
};

// Places of the result that see the same taps: start + step * j, for j below `extent` in each dimension.
struct Phase {
    Place start{}, step{}, extent{}, in_step{};
    Room<Tap> taps;
    int64_t places = 1;  // of one image
    int64_t across = 0;  // columns of a tile
    int64_t down = 0;    // channels of a tile
    uint64_t tiles = 0, rows = 0;
};

// The place of the result with that number among a phase's; returns its image.
int64_t image_of(const Phase& phase, int spatial, int64_t number, Place& j) {
    int64_t rest = number % phase.places;
    for (int i = spatial - 1; i >= 0; --i) j[i] = rest % phase.extent[i], rest /= phase.extent[i];
    return number / phase.places;
}

// Where the places of a tile lie in a tensor that has the result's extents, or 1.
Room<int64_t> places_in(const Tensor& tensor, const Phase& phase, int spatial, int64_t first, int64_t count) {
    Room<int64_t> all(static_cast<size_t>(count));
    const auto step = [&](int i) { return tensor.extent[i] > 1 ? tensor.stride[i] : 0; };
    for (int64_t t = 0; t < count; ++t) {
        Place j{};
        int64_t& place = all[static_cast<size_t>(t)];
        place = image_of(phase, spatial, first + t, j) * step(0);
        for (int i = 0; i < spatial; ++i) place += (phase.start[i] + phase.step[i] * j[i]) * step(2 + i);
    }
    return all;
}

// What a piece needs beside the tensors.  A thread keeps it for its next piece: memory that is new in each
// costs the system more than the products do.
template <class T>
struct Rooms {
    Room<T> gathered, sums, filter, slopes;
    static Rooms& of_this_thread() {
        static thread_local Rooms rooms;
        return rooms;
    }
    static T* of(Room<T>& room, int64_t count) {
        room.resize(static_cast<size_t>(count));
        return room.data();
    }
};

// The places of a tile: where each lies in the result, and in the input for each tap (-1: outside of it).
struct Places {
    Room<int64_t> out;
    Room<int64_t>& in = Rooms<int64_t>::of_this_thread().gathered;
    Places(const Phase& phase, const Tensor& from, const Tensor& to, int spatial, int64_t first,
           int64_t count)
        : out(places_in(to, phase, spatial, first, count)) {
        in.resize(static_cast<size_t>(count) * phase.taps.size());
        for (int64_t t = 0; t < count; ++t) {
            Place j{};
            const int64_t image = image_of(phase, spatial, first + t, j);
            for (size_t tap = 0; tap < phase.taps.size(); ++tap) {
                int64_t at = image * from.stride[0];
                for (int i = 0; i < spatial; ++i) {
                    const int64_t coordinate = j[i] * phase.in_step[i] + phase.taps[tap].in[i];
                    if (coordinate < 0 || coordinate >= from.extent[2 + i]) {
                        at = -1;
                        break;
                    }
                    at += coordinate * from.stride[2 + i];
                }
                in[tap * static_cast<size_t>(count) + static_cast<size_t>(t)] = at;
            }
        }
    }
};

// Whether channels lie closer together than places do: then terms are the inner dimension of the gathered
// matrix, by tap and channel; else places are, and terms are by channel and tap.
bool channels_inside(const Tensor& of) { return of.stride[1] < of.stride[of.rank - 1]; }

template <class T>
void gather(const Tensor& from, const Places& places, int64_t count, size_t taps, int64_t channel,
            int64_t channels, T* to) {
    with_element(from.type, [&]<class E>(E) {
        const auto* const base =
            reinterpret_cast<const typename E::Type*>(from.address) + channel * from.stride[1];
        const int64_t step = from.stride[1];
        if (channels_inside(from)) {
            const int64_t terms = channels * static_cast<int64_t>(taps);
            for (size_t tap = 0; tap < taps; ++tap)
                for (int64_t t = 0; t < count; ++t) {
                    const int64_t at = places.in[tap * static_cast<size_t>(count) + static_cast<size_t>(t)];
                    T* const here = to + t * terms + static_cast<int64_t>(tap) * channels;
                    if (at < 0)
                        std::fill_n(here, channels, T(0));
                    else
                        for (int64_t c = 0; c < channels; ++c)
                            here[c] = E::template get<T>(base[at + c * step]);
                }
        } else {
            for (int64_t c = 0; c < channels; ++c)
                for (size_t tap = 0; tap < taps; ++tap) {
                    const int64_t* const at = places.in.data() + tap * static_cast<size_t>(count);
                    const auto* const plane = base + c * step;
                    T* const here = to + (c * static_cast<int64_t>(taps) + static_cast<int64_t>(tap)) * count;
                    for (int64_t t = 0; t < count; ++t)
                        here[t] = at[t] < 0 ? T(0) : E::template get<T>(plane[at[t]]);
                }
        }
    });
}

Phase forward_phase(const Convolution& c) {
    Phase phase;
    int64_t taps = 1;
    for (int i = 0; i < MOST_SPATIAL; ++i) {
        const bool there = i < c.spatial;
        phase.extent[i] = there ? c.y.extent[2 + i] : 1;
        phase.step[i] = 1, phase.in_step[i] = there ? c.stride[i] : 1;
        phase.places *= phase.extent[i];
        if (there) taps *= c.w.extent[2 + i];
    }
    for (int64_t tap = 0; tap < taps; ++tap) {
        Tap one{{}, 0};
        int64_t rest = tap;
        for (int i = c.spatial - 1; i >= 0; --i) {
            const int64_t size = c.w.extent[2 + i], r = rest % size;
            rest /= size;
            one.in[i] = r * c.dilation[i] - c.before[i];
            one.at += (c.flipped ? size - 1 - r : r) * c.w.stride[2 + i];
        }
        phase.taps.push_back(one);
    }
    return phase;
}

// Of the gradient to the data: one for each remainder by the stride.
Room<Phase> data_phases(const Convolution& c) {
    const Phase all = forward_phase(c);
    int64_t remainders = 1;
    for (int i = 0; i < c.spatial; ++i) remainders *= std::min(c.stride[i], c.x.extent[2 + i]);
    Room<Phase> phases;
    for (int64_t number = 0; number < remainders; ++number) {
        Phase phase;
        int64_t rest = number;
        for (int i = MOST_SPATIAL - 1; i >= 0; --i) {
            phase.extent[i] = phase.step[i] = phase.in_step[i] = 1;
            if (i >= c.spatial) continue;
            const int64_t most = std::min(c.stride[i], c.x.extent[2 + i]);
            phase.start[i] = rest % most, rest /= most;
            phase.step[i] = c.stride[i];
            phase.extent[i] = (c.x.extent[2 + i] - phase.start[i] - 1) / c.stride[i] + 1;
            phase.places *= phase.extent[i];
        }
        for (const Tap& tap : all.taps) {
            Tap one{{}, tap.at};
            bool meets = true;
            for (int i = 0; i < c.spatial; ++i) {
                const int64_t distance = phase.start[i] - tap.in[i];  // q * stride
                meets = meets && distance % c.stride[i] == 0;
                one.in[i] = distance / c.stride[i];
            }
            if (meets) phase.taps.push_back(one);
        }
        phases.push_back(std::move(phase));
    }
    return phases;
}

// Forward, and to the data: out[o] = the sum of w[o, i, tap] * in[i, tap].
template <class T>
struct Gathering {
    Convolution c;
    Room<Phase> phases;
    const Tensor &in, &out;
    int64_t groups, inputs, outputs;  // channels of a group
    int64_t of_output, of_input;      // steps in the filter

    explicit Gathering(const Convolution& given)
        : c(given),
          in(c.direction == Convolution::FORWARD ? c.x : c.y),
          out(c.direction == Convolution::FORWARD ? c.y : c.x),
          groups(c.groups()) {
        const bool forward = c.direction == Convolution::FORWARD;
        inputs = in.extent[1] / groups, outputs = out.extent[1] / groups;
        of_output = c.w.stride[forward ? 0 : 1], of_input = c.w.stride[forward ? 1 : 0];
        if (forward)
            phases.push_back(forward_phase(c));
        else
            phases = data_phases(c);
        for (Phase& phase : phases) {
            const int64_t terms = std::max<int64_t>(inputs * static_cast<int64_t>(phase.taps.size()), 1);
            phase.across = std::clamp<int64_t>((1 << 18) / terms, 16, 2048);
            phase.down = std::clamp<int64_t>(
                static_cast<int64_t>(MOST_PRODUCTS / static_cast<double>(terms * phase.across)), 16, outputs);
            phase.rows = parts(outputs, phase.down);
            phase.tiles =
                parts(phase.places * in.extent[0], phase.across) * phase.rows * static_cast<uint64_t>(groups);
        }
    }
    Gathering(const Gathering&) = delete;

    uint64_t pieces() const {
        uint64_t all = 0;
        for (const Phase& phase : phases) all += phase.tiles;
        return all;
    }

    // The filter's channels from `first` as rows of a matrix, in the order of the gathered terms; where they
    // lie so already, there.
    const T* filter(const Phase& phase, int64_t group, int64_t first, int64_t count, Room<T>& room) const {
        const auto taps = static_cast<int64_t>(phase.taps.size()), terms = inputs * taps;
        const bool inside = channels_inside(in);
        const int64_t of_group =
            group * c.w.stride[0] * (c.w.extent[0] / groups);  // groups divide the filter's outer channels
        return with_element(c.w.type, [&]<class E>(E) -> const T* {
            const auto* const base =
                reinterpret_cast<const typename E::Type*>(c.w.address) + of_group + first * of_output;
            if constexpr (std::is_same_v<typename E::Type, T>) {
                bool plain = of_output == terms && of_input == (inside ? 1 : taps);
                for (int64_t tap = 0; plain && tap < taps; ++tap)
                    plain = phase.taps[static_cast<size_t>(tap)].at == tap * (inside ? inputs : 1);
                if (plain) return base;
            }
            room.resize(static_cast<size_t>(count * terms));
            for (int64_t o = 0; o < count; ++o)
                for (int64_t tap = 0; tap < taps; ++tap)
                    for (int64_t i = 0; i < inputs; ++i)
                        room[static_cast<size_t>(o * terms + (inside ? tap * inputs + i : i * taps + tap))] =
                            E::template get<T>(
                                base[o * of_output + i * of_input + phase.taps[static_cast<size_t>(tap)].at]);
            return room.data();
        });
    }

    // The tile's elements, through the stages.
    void finish(const Phase& phase, const Places& places, int64_t first, int64_t count, int64_t channel,
                int64_t channels, const T* sums, const Access& access) const {
        struct Lying {
            const Tensor* tensor;
            Room<int64_t> places;
            int64_t of_channel;
        };
        const auto lying = [&](const Tensor& tensor, bool writing, const char* what) {
            tensor.check(access, writing, what);
            return Lying{&tensor, places_in(tensor, phase, c.spatial, first, count),
                         tensor.extent[1] > 1 ? tensor.stride[1] : 0};
        };
        Room<Lying> inputs_at, results;
        for (const Convolution::Stage& stage : c.stages) {
            for (const Convolution::Input& input : stage.inputs)
                if (input.reg < 0 && !input.operand.number)
                    inputs_at.push_back(lying(input.operand.tensor, false, "an operand"));
            if (stage.stored) results.push_back(lying(stage.to, true, "y"));
        }
        double registers[MOST_REGISTERS] = {};
        for (int64_t o = 0; o < channels; ++o)
            for (int64_t t = 0; t < count; ++t) {
                const auto at = [&](const Lying& one) {
                    return one.places[static_cast<size_t>(t)] + (channel + o) * one.of_channel;
                };
                registers[0] = c.alpha * static_cast<double>(sums[o * count + t]);
                if (c.stored) {
                    const int64_t place = places.out[static_cast<size_t>(t)] + (channel + o) * out.stride[1];
                    if (c.beta != 0) registers[0] += c.beta * get(out, place);
                    put(out, place, registers[0]);
                }
                size_t read = 0, written = 0;
                for (const Convolution::Stage& stage : c.stages) {
                    double values[3] = {};
                    for (size_t i = 0; i < stage.inputs.size(); ++i) {
                        const Convolution::Input& input = stage.inputs[i];
                        if (input.reg >= 0)
                            values[i] = registers[input.reg];
                        else if (input.operand.number)
                            values[i] = *input.operand.number;
                        else
                            values[i] = get(input.operand.tensor, at(inputs_at[read])), ++read;
                        values[i] *= input.operand.alpha;
                    }
                    registers[stage.reg] = stage.op(values[0], values[1], values[2]);
                    if (stage.stored) put(stage.to, at(results[written]), registers[stage.reg]), ++written;
                }
            }
    }

    void run(uint64_t number, const Access& access) const {
        auto phase = phases.begin();
        for (; number >= phase->tiles; ++phase) number -= phase->tiles;
        const int64_t row = static_cast<int64_t>(number % phase->rows) * phase->down;
        number /= phase->rows;
        const auto group = static_cast<int64_t>(number % static_cast<uint64_t>(groups));
        const int64_t first = static_cast<int64_t>(number / static_cast<uint64_t>(groups)) * phase->across;
        const int64_t count = std::min(phase->across, phase->places * in.extent[0] - first),
                      rows = std::min(phase->down, outputs - row);
        in.check(access, false, c.direction == Convolution::FORWARD ? "x" : "dy");
        c.w.check(access, false, "w");
        if (c.stored) out.check(access, true, c.direction == Convolution::FORWARD ? "y" : "dx");
        const Places places(*phase, in, out, c.spatial, first, count);
        const auto taps = phase->taps.size();
        const int64_t terms = inputs * static_cast<int64_t>(taps);
        auto& rooms = Rooms<T>::of_this_thread();
        T* const sums = Rooms<T>::of(rooms.sums, count * rows);
        T* const gathered = Rooms<T>::of(rooms.gathered, count * terms);
        if (terms) {
            gather(in, places, count, taps, group * inputs, inputs, gathered);
            const T* const weights = filter(*phase, group, row, rows, rooms.filter);
            const bool inside = channels_inside(in);
            gemm<T>(inside ? 'T' : 'N', 'N', count, rows, terms, gathered, inside ? terms : count, weights,
                    terms, T(0), sums, count);
        } else {
            std::fill_n(sums, count * rows, T(0));
        }
        if (!c.stages.empty())
            return finish(*phase, places, first, count, group * outputs + row, rows, sums, access);
        with_element(out.type, [&]<class E>(E) {
            auto* const to =
                reinterpret_cast<typename E::Type*>(out.address) + (group * outputs + row) * out.stride[1];
            const auto alpha = static_cast<T>(c.alpha), beta = static_cast<T>(c.beta);
            const auto store = [&](int64_t o, int64_t t) {
                auto& place = to[places.out[static_cast<size_t>(t)] + o * out.stride[1]];
                T value = alpha * sums[o * count + t];
                if (beta != T(0)) value += beta * E::template get<T>(place);
                place = E::put(value);
            };
            if (channels_inside(out))
                for (int64_t t = 0; t < count; ++t)
                    for (int64_t o = 0; o < rows; ++o) store(o, t);
            else
                for (int64_t o = 0; o < rows; ++o)
                    for (int64_t t = 0; t < count; ++t) store(o, t);
        });
    }
};

// To the filter.  Each tile adds the products of a stretch to the result, or where that has a narrow type to
// sums that stand beside it on the host until the last stretch.
template <class T>
struct Summing {
    Convolution c;
    Phase phase;
    int64_t groups, inputs, outputs, taps, channels, down, stretch, all;
    bool narrow;
    mutable std::once_flag made;
    mutable Room<T> beside;  // as [group][output channel][input channel][tap]

    explicit Summing(const Convolution& given) : c(given), phase(forward_phase(c)), groups(c.groups()) {
        inputs = c.w.extent[1], outputs = c.w.extent[0] / groups;
        taps = static_cast<int64_t>(phase.taps.size());
        channels = std::clamp<int64_t>(512 / taps, 1, inputs);
        down = std::min<int64_t>(outputs, 256);
        stretch = std::clamp<int64_t>(
            static_cast<int64_t>(MOST_PRODUCTS / static_cast<double>(down * channels * taps)), 64, 1 << 14);
        stretch = std::clamp<int64_t>((1 << 21) / (channels * taps), 64, stretch);
        all = phase.places * c.x.extent[0];
        narrow = element_bytes(c.w.type) != sizeof(T) || c.w.type == INT32;
    }
    uint64_t stretches() const { return parts(all, stretch); }
    uint64_t tiles() const {
        return static_cast<uint64_t>(groups) * parts(inputs, channels) * parts(outputs, down);
    }
    uint64_t bytes_beside() const { return narrow ? static_cast<uint64_t>(c.w.count()) * sizeof(T) : 0; }

    void add(uint64_t number, int64_t first, const Access& access) const {
        const auto rows_of = parts(outputs, down), columns_of = parts(inputs, channels);
        const int64_t row = static_cast<int64_t>(number % rows_of) * down;
        const int64_t channel = static_cast<int64_t>(number / rows_of % columns_of) * channels;
        const auto group = static_cast<int64_t>(number / rows_of / columns_of);
        const int64_t count = std::min(stretch, all - first), rows = std::min(down, outputs - row),
                      width = std::min(channels, inputs - channel), terms = width * taps;
        c.x.check(access, false, "x");
        c.y.check(access, false, "dy");
        c.w.check(access, true, "dw");
        if (narrow) std::call_once(made, [this] { beside.resize(static_cast<size_t>(c.w.count())); });
        const Places places(phase, c.x, c.y, c.spatial, first, count);
        auto& rooms = Rooms<T>::of_this_thread();
        T* const gathered = Rooms<T>::of(rooms.gathered, count * terms);
        T* const slopes = Rooms<T>::of(rooms.slopes, count * rows);
        T* const sums = Rooms<T>::of(rooms.sums, terms * rows);
        gather(c.x, places, count, phase.taps.size(), group * inputs + channel, width, gathered);
        with_element(c.y.type, [&]<class E>(E) {
            const auto* const from = reinterpret_cast<const typename E::Type*>(c.y.address) +
                                     (group * outputs + row) * c.y.stride[1];
            for (int64_t o = 0; o < rows; ++o)
                for (int64_t t = 0; t < count; ++t)
                    slopes[o * count + t] =
                        E::template get<T>(from[places.out[static_cast<size_t>(t)] + o * c.y.stride[1]]);
        });
        const bool inside = channels_inside(c.x);
        gemm<T>(inside ? 'N' : 'T', 'N', terms, rows, count, gathered, inside ? terms : count, slopes, count,
                T(0), sums, terms);
        for (int64_t o = 0; o < rows; ++o)
            for (int64_t i = 0; i < width; ++i)
                for (int64_t tap = 0; tap < taps; ++tap) {
                    const int64_t channel_of_w = group * outputs + row + o;
                    const T sum = sums[o * terms + (inside ? tap * width + i : i * taps + tap)];
                    if (narrow)
                        beside[static_cast<size_t>((channel_of_w * inputs + channel + i) * taps + tap)] +=
                            sum;
                    else
                        store(channel_of_w, channel + i, tap, sum, first == 0);
                }
    }

    void store(int64_t output, int64_t input, int64_t tap, T sum, bool is_first) const {
        T& place = reinterpret_cast<T*>(c.w.address)[output * c.w.stride[0] + input * c.w.stride[1] +
                                                     phase.taps[static_cast<size_t>(tap)].at];
        const T before = !is_first ? place : c.beta != 0 ? static_cast<T>(c.beta) * place : T(0);
        place = before + static_cast<T>(c.alpha) * sum;
    }

    // One of the filter's output channels, from the sums that stand beside it.
    void finish(uint64_t number, const Access& access) const {
        const auto output = static_cast<int64_t>(number);
        if (beside.empty()) return;  // the host had no memory
        c.w.check(access, true, "dw");
        for (int64_t input = 0; input < inputs; ++input)
            for (int64_t tap = 0; tap < taps; ++tap)
                blend(
                    c.w,
                    output * c.w.stride[0] + input * c.w.stride[1] + phase.taps[static_cast<size_t>(tap)].at,
                    static_cast<double>(beside[static_cast<size_t>((output * inputs + input) * taps + tap)]),
                    c.alpha, c.beta);
    }
};

template <class T>
int start(const Context& context, const Convolution& c) {
    if (c.direction != Convolution::TO_FILTER) {
        auto all = std::make_shared<Gathering<T>>(c);
        return submit(context, all->pieces(),
                      [all](uint64_t number, const Access& access) { all->run(number, access); });
    }
    auto all = std::make_shared<Summing<T>>(c);
    for (uint64_t i = 0; i < all->stretches(); ++i) {
        const int64_t first = static_cast<int64_t>(i) * all->stretch;
        const int status = submit(
            context, all->tiles(),
            [all, first](uint64_t number, const Access& access) { all->add(number, first, access); },
            i ? 0 : all->bytes_beside());
        if (status) return status;
    }
    if (!all->narrow) return SUCCESS;
    return submit(
        context, static_cast<uint64_t>(c.w.extent[0]),
        [all](uint64_t number, const Access& access) { all->finish(number, access); }, all->bytes_beside());
}

bool is_number(int type) {
    return type == FLOAT || type == DOUBLE || type == HALF || type == BFLOAT16 || type == INT8 ||
           type == UINT8 || type == INT32;
}
}  // namespace

int check(const Convolution& c, const char*& why) {
    for (const Tensor* tensor : {&c.x, &c.w, &c.y}) {
        if (!tensor->valid() || tensor->rank != c.spatial + 2) return BAD_PARAM;
        if (!is_number(tensor->type)) return why = "a convolution of that type", NOT_SUPPORTED;
        if ((tensor->type == DOUBLE) != c.wide())
            return why = "a convolution of double with another type", NOT_SUPPORTED;
    }
    if (c.spatial < 1 || c.spatial > MOST_SPATIAL)
        return why = "a convolution of more than three dimensions", NOT_SUPPORTED;
    if (c.x.extent[0] != c.y.extent[0] || c.x.extent[1] % c.w.extent[1] || c.w.extent[0] != c.y.extent[1] ||
        c.w.extent[0] % c.groups())
        return BAD_PARAM;
    int64_t taps = 1;
    for (int i = 0; i < c.spatial; ++i) {
        constexpr int64_t most = 1 << 30;
        for (const int64_t number : {c.before[i], c.after[i], c.stride[i], c.dilation[i]})
            if (number < 0 || number > most) return BAD_PARAM;
        if (!c.stride[i] || !c.dilation[i] || c.w.extent[2 + i] > most) return BAD_PARAM;
        const int64_t covered =
            c.x.extent[2 + i] + c.before[i] + c.after[i] - c.dilation[i] * (c.w.extent[2 + i] - 1) - 1;
        if (covered < 0 || covered / c.stride[i] + 1 != c.y.extent[2 + i]) return BAD_PARAM;
        taps *= c.w.extent[2 + i];
        if (taps > MOST_TAPS) return why = "a filter with so many places", NOT_SUPPORTED;
    }
    const int64_t inputs = c.direction == Convolution::TO_DATA ? c.w.extent[0] / c.groups() : c.w.extent[1];
    if (taps > MOST_TERMS / inputs) return why = "a filter of so many channels", NOT_SUPPORTED;
    int64_t remainders = 1;
    for (int i = 0; i < c.spatial; ++i) remainders *= std::min(c.stride[i], c.x.extent[2 + i]);
    if (c.direction == Convolution::TO_DATA && remainders > MOST_TAPS * 64 / taps)
        return why = "a stride that is so large", NOT_SUPPORTED;
    if (c.direction == Convolution::TO_FILTER) {
        const auto stretches = c.wide() ? Summing<double>(c).stretches() : Summing<float>(c).stretches();
        if (stretches > MOST_STRETCHES)
            return why = "a gradient that sums over so many places", NOT_SUPPORTED;
    }
    return SUCCESS;
}

int convolve(const Context& context, const Convolution& c) {
    return c.wide() ? start<double>(context, c) : start<float>(context, c);
}

}  // namespace gpukernel::simgpu_libraries::cudnn
