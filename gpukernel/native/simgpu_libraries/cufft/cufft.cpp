// libcufft beside the simulated GPU: a transform is one pass for each dimension, and a pass so many lines.
#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "libraries/cufft/plan.h"
#include "simgpu_libraries/cufft/line.h"
#include "simgpu_libraries/device_work.h"
#include "simgpu_libraries/elements.h"

namespace gpukernel::libraries::cufft {

using namespace simgpu_libraries;
using simgpu_libraries::cufft::Line;
using simgpu_libraries::cufft::Number;

namespace {
// One line is one piece, which nothing can pause: at a million points a tenth of a second.
constexpr int64_t LONGEST = int64_t{1} << 22;
constexpr int64_t POINTS_AT_ONCE = 1 << 14;

// Tables of a length, while any work needs them.
std::shared_ptr<const Line> line_of(int64_t n) {
    static std::mutex* const mutex = new std::mutex;
    static auto* const all = new std::map<int64_t, std::weak_ptr<const Line>>;
    {
        std::lock_guard lock(*mutex);
        if (auto found = (*all)[n].lock()) return found;
    }
    auto made = std::make_shared<const Line>(n);
    std::lock_guard lock(*mutex);
    std::erase_if(*all, [](const auto& one) { return one.second.expired(); });
    (*all)[n] = made;
    return made;
}
// The tables of one pass, made by its first piece.
struct Tables {
    std::once_flag once;
    std::shared_ptr<const Line> line;
    const Line& of(int64_t n) {
        std::call_once(once, [&] { line = line_of(n); });
        return *line;
    }
};

// One side of a pass: the numbers of a line are `step` apart.
struct Side {
    uint64_t address;
    int64_t type, dist, strides[MOST_DIMENSIONS];
    uint64_t bytes() const {
        const auto real = real_of(type);
        return (real == R_64F ? 8u : real == R_32F ? 4u : 2u) * (is_complex(type) ? 2u : 1u);
    }
};
Side side_of(const void* address, int64_t type, const Embedding& layout, int64_t rank) {
    Side side{reinterpret_cast<uint64_t>(address), type, layout.dist, {0, 0, 0}};
    int64_t stride = layout.stride;
    for (auto i = static_cast<int>(rank - 1); i >= 0; --i)
        side.strides[i] = stride, stride *= layout.embed[i];
    return side;
}

double read_real(const char* at, int64_t real) { return load<double>(at, static_cast<int>(real)); }
void write_real(char* at, int64_t real, double value) { store(at, static_cast<int>(real), value); }

struct Pass {
    const char* name;
    CUstream stream;
    Side from, to;
    int axis;
    int64_t n;                        // of the line
    int64_t read, written;            // numbers of it on each side
    int64_t others[MOST_DIMENSIONS];  // lines of a transform, by dimension; 1 for the line's own
    int64_t batch;
    bool inverse;

    int64_t lines() const { return others[0] * others[1] * others[2] * batch; }

    void run(int64_t number, const Line& line, Number* data, Number* scratch, const Access& access) const {
        int64_t source = 0, target = 0, rest = number;
        for (int i = MOST_DIMENSIONS - 1; i >= 0; --i) {
            const int64_t x = rest % others[i];
            rest /= others[i];
            source += x * from.strides[i], target += x * to.strides[i];
        }
        source += rest * from.dist, target += rest * to.dist;
        const char* const in = checked(from, source, read, false, access);
        const int64_t in_step = from.strides[axis] * static_cast<int64_t>(from.bytes());
        const auto real = real_of(from.type);
        const auto part = static_cast<int64_t>(from.bytes() / 2);
        for (int64_t k = 0; k < read; ++k) {
            const char* const at = in + k * in_step;
            // A transform back is the transform of the parts exchanged, its parts exchanged.
            if (!is_complex(from.type))
                data[k] = read_real(at, real);
            else if (inverse)
                data[k] = {read_real(at + part, real), read_real(at, real)};
            else
                data[k] = {read_real(at, real), read_real(at + part, real)};
        }
        if (is_complex(from.type) && !is_complex(to.type)) complete(data);
        line.forward(data, scratch);
        char* const out = checked(to, target, written, true, access);
        const int64_t out_step = to.strides[axis] * static_cast<int64_t>(to.bytes());
        const auto out_part = static_cast<int64_t>(to.bytes() / 2);
        for (int64_t k = 0; k < written; ++k) {
            char* const at = out + k * out_step;
            if (!is_complex(to.type)) {
                write_real(at, real, data[k].imag());  // the parts are exchanged
            } else {
                write_real(at, real, inverse ? data[k].imag() : data[k].real());
                write_real(at + out_part, real, inverse ? data[k].real() : data[k].imag());
            }
        }
    }

  private:
    // The half of a Hermitian line that is not stored; of the numbers that are their own conjugates the real
    // part counts.
    void complete(Number* data) const {
        data[0] = {0, data[0].imag()};
        if (n % 2 == 0) data[n / 2] = {0, data[n / 2].imag()};
        for (int64_t k = n / 2 + 1; k < n; ++k) data[k] = {-data[n - k].real(), data[n - k].imag()};
    }
    char* checked(const Side& side, int64_t at, int64_t count, bool writing, const Access& access) const {
        const uint64_t address = side.address + static_cast<uint64_t>(at) * side.bytes();
        access.check(
            address,
            (static_cast<uint64_t>(count - 1) * static_cast<uint64_t>(side.strides[axis]) + 1) * side.bytes(),
            writing, writing ? "the output" : "the input");
        return reinterpret_cast<char*>(address);
    }
};

int submit(const Pass& pass) {
    const int64_t lines = pass.lines(), at_once = std::max<int64_t>(1, POINTS_AT_ONCE / pass.n);
    const auto tables = std::make_shared<Tables>();
    const auto run = [=](uint64_t piece, const Access& access) {
        const Line& line = tables->of(pass.n);
        Room<Number> work(static_cast<size_t>(pass.n + line.scratch_size()));
        const int64_t first = static_cast<int64_t>(piece) * at_once;
        for (int64_t i = first; i < std::min(first + at_once, lines); ++i)
            pass.run(i, line, work.data(), work.data() + pass.n, access);
    };
    const CUresult result =
        simgpu_libraries::submit(pass.stream, pass.name, static_cast<uint64_t>((lines - 1) / at_once + 1),
                                 run, Line::table_bytes(pass.n) + Line::work_bytes(pass.n));
    return result == CUDA_SUCCESS ? SUCCESS : result == CUDA_ERROR_OUT_OF_MEMORY ? ALLOC_FAILED : EXEC_FAILED;
}
}  // namespace

int begin(Plan&) {
    static auto* const context = driver_function<CUresult(CUcontext*)>("cuCtxGetCurrent");
    CUcontext current = nullptr;
    return on_simulated_device() && context && context(&current) == CUDA_SUCCESS && current ? SUCCESS
                                                                                            : SETUP_FAILED;
}
void end(Plan&) {}  // what was submitted knows all that it needs

int execute(Plan& plan, const void* input, void* output, int direction) {
    const Shape& s = plan.shape;
    const auto last = static_cast<int>(s.rank - 1);
    if (std::any_of(s.n, s.n + s.rank, [](int64_t n) { return n > LONGEST; })) {
        complain("cufftExec: a dimension of more than " + std::to_string(LONGEST) +
                 " points is not supported on a simulated device");
        return NOT_SUPPORTED;
    }
    Side from = side_of(input, s.input_type, s.input, s.rank),
         to = side_of(output, s.output_type, s.output, s.rank);
    const bool forward_real = real_to_complex(s), back_to_real = complex_to_real(s);
    // In place a packed real side has its rows padded to those of the complex side.
    if (s.plain && input == output && (forward_real || back_to_real)) {
        Embedding padded = forward_real ? s.output : s.input;
        padded.embed[last] *= 2, padded.dist *= 2;
        (forward_real ? from : to) =
            side_of(input, forward_real ? s.input_type : s.output_type, padded, s.rank);
    }
    const char* const name = "cufftExec";
    const auto pass = [&](const Side& a, const Side& b, int axis, int64_t read, int64_t written) {
        Pass one{name,    plan.stream,         a, b, axis, s.n[axis], read, written, {1, 1, 1},
                 s.batch, direction == INVERSE};
        for (int i = 0; i < s.rank; ++i) one.others[i] = i == axis ? 1 : s.n[i];
        if ((forward_real || back_to_real) && axis != last) one.others[last] = s.n[last] / 2 + 1;
        return submit(one);
    };
    const int64_t half = s.n[last] / 2 + 1;
    int status = SUCCESS;
    if (back_to_real) {  // the input is overwritten, as by NVIDIA's library, where there are more dimensions
        for (int axis = 0; axis < last && !status; ++axis)
            status = pass(from, from, axis, s.n[axis], s.n[axis]);
        return status ? status : pass(from, to, last, half, s.n[last]);
    }
    status = pass(from, to, last, s.n[last], forward_real ? half : s.n[last]);
    for (int axis = last - 1; axis >= 0 && !status; --axis) status = pass(to, to, axis, s.n[axis], s.n[axis]);
    return status;
}

}  // namespace gpukernel::libraries::cufft
