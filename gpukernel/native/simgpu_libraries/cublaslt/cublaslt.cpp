// libcublasLt beside the simulated GPU: products with epilogues, in columns and in rows, and transformations.
#include <cstdio>

#include "libraries/cublaslt/descriptors.h"
#include "simgpu_libraries/cublas/product.h"
#include "simgpu_libraries/openblas.h"

namespace gpukernel::simgpu_libraries::cublaslt {

using namespace libraries::cublaslt;
using namespace cublas;
using libraries::unsupported;

namespace {
constexpr uint64_t OUR_ALGORITHM = 0x6770756b;  // there is one
constexpr uint32_t EPILOGUES = DEFAULT | RELU | BIAS | DRELU | GELU | DGELU | AUX;

int refused(const char* name, const std::string& what) {
    libraries::complain(std::string(name) + ": " + what + " is not supported on a simulated device");
    return NOT_SUPPORTED;
}

Operand operand_of(const Layout& layout, uint64_t address, int operation = OP_N) {
    const bool rows = layout.order == ROWS;
    Operand of{address, static_cast<int>(layout.type), rows ? layout.ld : 1, rows ? 1 : layout.ld,
               layout.batch_step};
    if (operation != OP_N) std::swap(of.row_step, of.column_step);
    of.conjugated = operation == OP_C;
    return of;
}

bool is_layout(const Layout& layout) {
    const uint64_t along = layout.order == ROWS ? layout.columns : layout.rows;
    return layout.ld > 0 && static_cast<uint64_t>(layout.ld) >= along && layout.rows <= INT64_MAX &&
           layout.columns <= INT64_MAX && layout.batches > 0;
}

struct Call {
    const Operation& operation;
    const Layout &a, &b, &c, &d;
};

// Whether there is such a product at all: what is not understood is refused by name, never left out.
int possible(const char* name, const Call& call) {
    const Operation& o = call.operation;
    for (const Layout* layout : {&call.a, &call.b, &call.c, &call.d}) {
        if (layout->order != COLUMNS && layout->order != ROWS)
            return refused(name, "the order " + std::to_string(layout->order) + " (cublasLtOrder_t)");
        if (layout->plane || layout->batch_mode) return refused(name, "a layout in planes or by addresses");
        if (!is_layout(*layout) || layout->batches != call.d.batches) return INVALID_VALUE;
    }
    if (!is_operation(o.transa) || !is_operation(o.transb)) return INVALID_VALUE;
    if (o.transc != OP_N || o.fill != 2) return refused(name, "a transposed or triangular result");
    if (o.a_mode || o.b_mode || o.c_mode || o.d_mode || o.aux_mode || o.d_out_mode || o.d_out_scale)
        return refused(name, "a scale that is no single number");
    if (o.d_largest || o.aux_largest || o.aux_scale)
        return refused(name, "the largest absolute value of a result");
    if (o.pointers == VECTORS || o.pointers < ON_HOST || o.pointers > ALPHA_VECTOR_BETA_HOST)
        return refused(name, "the pointer mode " + std::to_string(o.pointers) + " (cublasLtPointerMode_t)");
    if (o.epilogue & ~EPILOGUES || (o.epilogue & (RELU | GELU) && o.epilogue & (DRELU | DGELU)) ||
        (o.epilogue & RELU && o.epilogue & GELU) || (o.epilogue & BIAS && o.epilogue & (DRELU | DGELU)) ||
        (o.epilogue & (DRELU | DGELU) && !(o.epilogue & AUX)))  // which says where the slopes come from
        return refused(name, "the epilogue " + std::to_string(o.epilogue) + " (cublasLtEpilogue_t)");
    const bool plain = o.epilogue == DEFAULT || !o.epilogue;
    if (!plain && is_complex(static_cast<int>(call.d.type)))
        return refused(name, "an epilogue of complex numbers");
    if (!data_bytes(o.scale) || is_complex(o.scale) != is_complex(static_cast<int>(call.d.type)))
        return refused(name, "the scale type " + std::to_string(o.scale) + " (cudaDataType)");
    if (o.bias_type >= 0 && !data_bytes(o.bias_type)) return refused(name, "that type of a bias");
    if (o.aux_type >= 0 && !data_bytes(o.aux_type)) return refused(name, "that type of an auxiliary matrix");
    const auto rows = [](const Layout& of, int op) { return op ? of.columns : of.rows; };
    const auto columns = [](const Layout& of, int op) { return op ? of.rows : of.columns; };
    if (rows(call.a, o.transa) != call.d.rows || columns(call.b, o.transb) != call.d.columns ||
        columns(call.a, o.transa) != rows(call.b, o.transb) || call.c.rows != call.d.rows ||
        call.c.columns != call.d.columns)
        return INVALID_VALUE;
    if ((o.epilogue & BIAS && !o.bias) || (o.epilogue & AUX && !o.aux)) return INVALID_VALUE;
    if (o.epilogue & AUX) {
        const bool bits = o.epilogue & (RELU | DRELU);
        if (o.aux_ld < static_cast<int64_t>(call.d.rows) || (bits && o.aux_ld % 128)) return INVALID_VALUE;
        if (call.d.order == ROWS) return refused(name, "an auxiliary matrix of a result in rows");
    }
    return SUCCESS;
}

double gelu(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) {
    const double t = std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

// Tiles begin at multiples of 16 rows, so that no two have bits of one byte.
struct Finish {
    uint32_t kind;
    uint64_t bias, aux;
    int bias_type, aux_type;
    int64_t bias_step, aux_ld, aux_step;

    void operator()(const Tile& t, double* values, const Access& access) const {
        const auto bias_bytes = static_cast<int64_t>(data_bytes(bias_type));
        const char* added = nullptr;
        if (kind & BIAS) {
            const uint64_t at = bias + static_cast<uint64_t>((t.batch * bias_step + t.row) * bias_bytes);
            access.check(at, static_cast<uint64_t>(t.rows * bias_bytes), false, "the bias");
            added = reinterpret_cast<const char*>(at);
        }
        const bool bits = kind & (RELU | DRELU), writes = kind & (RELU | GELU);
        for (int64_t j = 0; j < t.columns; ++j) {
            double* const column = values + j * t.rows;
            if (added)
                for (int64_t i = 0; i < t.rows; ++i)
                    column[i] += load<double>(added + i * bias_bytes, bias_type);
            char* side = nullptr;  // this column's part of the auxiliary matrix
            if (kind & AUX) {
                const int64_t first = t.batch * aux_step + (t.column + j) * aux_ld + t.row;
                const auto bytes = static_cast<int64_t>(data_bytes(aux_type));
                const uint64_t at = aux + static_cast<uint64_t>(bits ? first / 8 : first * bytes);
                access.check(at, static_cast<uint64_t>(bits ? (t.rows + 7) / 8 : t.rows * bytes), writes,
                             "the auxiliary matrix");
                side = reinterpret_cast<char*>(at);
            }
            for (int64_t i = 0; i < t.rows; ++i) {
                double& value = column[i];
                char* const place =
                    side && !bits ? side + i * static_cast<int64_t>(data_bytes(aux_type)) : nullptr;
                const auto bit = static_cast<char>(1 << (i % 8));
                if (kind & RELU) {
                    const bool positive = value > 0;
                    if (side)
                        side[i / 8] = static_cast<char>(positive ? side[i / 8] | bit : side[i / 8] & ~bit);
                    value = positive || std::isnan(value) ? value : 0;
                } else if (kind & GELU) {
                    if (place) store(place, aux_type, value);
                    value = gelu(value);
                } else if (kind & DRELU) {
                    value = side[i / 8] & bit ? value : 0;
                } else if (kind & DGELU) {
                    value *= gelu_slope(load<double>(place, aux_type));
                }
            }
        }
    }
};
}  // namespace

GPUKERNEL_EXPORT int cublasLtCreate(void** handle) {
    if (!handle) return INVALID_VALUE;
    static char token;  // a handle has no settings
    static constexpr const char* needed[] = {GPUKERNEL_BLAS_NAMES("gemm")};
    *handle = on_simulated_device() && load_openblas(needed) ? &token : nullptr;
    return *handle ? SUCCESS : NOT_INITIALIZED;
}
GPUKERNEL_EXPORT int cublasLtDestroy(void* handle) { return handle ? SUCCESS : NOT_INITIALIZED; }

GPUKERNEL_EXPORT int cublasLtMatmul(void* handle, const Operation* operation, const void* alpha,
                                    const void* A, const Layout* a, const void* B, const Layout* b,
                                    const void* beta, const void* C, const Layout* c, void* D,
                                    const Layout* d, const Algorithm* algorithm, void*, size_t,
                                    CUstream stream) {
    if (!handle) return NOT_INITIALIZED;
    if (!operation || !a || !b || !c || !d || !alpha ||
        (!beta && operation->pointers != ALPHA_VECTOR_BETA_ZERO))
        return INVALID_VALUE;
    if (algorithm && algorithm->words[0] != OUR_ALGORITHM) return INVALID_VALUE;
    if (const int status = possible("cublasLtMatmul", {*operation, *a, *b, *c, *d})) return status;
    const Operation& o = *operation;
    Handle own;
    own.settings.stream = stream;
    const Context context(own, "cublasLtMatmul");
    const auto at = [](const void* address) { return reinterpret_cast<uint64_t>(address); };
    Product product;
    product.m = static_cast<int64_t>(d->rows), product.n = static_cast<int64_t>(d->columns);
    product.k = static_cast<int64_t>(o.transa ? a->rows : a->columns), product.batches = d->batches;
    product.a = operand_of(*a, at(A), o.transa), product.b = operand_of(*b, at(B), o.transb);
    product.c = operand_of(*c, at(C)), product.d = operand_of(*d, at(D));
    product.compute = o.compute, product.scale = o.scale;
    product.a_factor = o.a_scale, product.b_factor = o.b_scale, product.c_factor = o.c_scale;
    product.d_factor = o.d_scale;
    if (const uint32_t kind = o.epilogue & ~uint32_t{DEFAULT})
        product.epilogue = Finish{kind,
                                  o.bias,
                                  o.aux,
                                  o.bias_type < 0 ? static_cast<int>(d->type) : o.bias_type,
                                  o.aux_type < 0 ? static_cast<int>(d->type) : o.aux_type,
                                  o.bias_step,
                                  o.aux_ld,
                                  o.aux_step};
    if (o.pointers >= ALPHA_VECTOR_BETA_ZERO)
        product.alpha_vector = Operand{at(alpha), o.scale, 1, 1, o.alpha_step};
    const size_t bytes = data_bytes(o.scale);
    static constexpr double zero[2] = {};
    const Scalar first(o.pointers == ON_HOST, alpha, bytes);
    const Scalar second = o.pointers == ALPHA_VECTOR_BETA_ZERO ? Scalar(true, zero, bytes)
                                                               : Scalar(o.pointers != ON_DEVICE, beta, bytes);
    return multiply(context, product, first, second);
}

GPUKERNEL_EXPORT int cublasLtMatmulAlgoCheck(void* handle, const Operation* operation, const Layout* a,
                                             const Layout* b, const Layout* c, const Layout* d,
                                             const Algorithm* algorithm, Heuristic* result) {
    if (!handle) return NOT_INITIALIZED;
    if (!operation || !a || !b || !c || !d || !algorithm || !result || algorithm->words[0] != OUR_ALGORITHM)
        return INVALID_VALUE;
    *result = {*algorithm, 0, SUCCESS, 1, {}};
    // As a question: addresses may be set later.
    Operation asked = *operation;
    if (asked.epilogue & BIAS && !asked.bias) asked.bias = 1;
    if (asked.epilogue & AUX && !asked.aux) asked.aux = 1;
    return result->status = possible("cublasLtMatmulAlgoCheck", {asked, *a, *b, *c, *d});
}

GPUKERNEL_EXPORT int cublasLtMatmulAlgoGetHeuristic(void* handle, const Operation* operation, const Layout* a,
                                                    const Layout* b, const Layout* c, const Layout* d,
                                                    const Preference* preference, int most,
                                                    Heuristic* results, int* count) {
    if (!preference || most <= 0 || !count) return INVALID_VALUE;
    *count = 0;
    const Algorithm ours{{OUR_ALGORITHM}};
    const int status = cublasLtMatmulAlgoCheck(handle, operation, a, b, c, d, &ours, results);
    if (!status) *count = 1;
    return status;
}

// C = alpha op(A) + beta op(B), between any two orders and types of real numbers.
GPUKERNEL_EXPORT int cublasLtMatrixTransform(void* handle, const Transformation* transformation,
                                             const void* alpha, const void* A, const Layout* a,
                                             const void* beta, const void* B, const Layout* b, void* C,
                                             const Layout* c, CUstream stream) {
    constexpr char name[] = "cublasLtMatrixTransform";
    if (!handle) return NOT_INITIALIZED;
    if (!transformation || !a || !c || !alpha || (b && !beta)) return INVALID_VALUE;
    const Transformation t = *transformation;
    const int64_t rows = static_cast<int64_t>(c->rows), columns = static_cast<int64_t>(c->columns);
    for (const Layout* layout : {a, b ? b : a, c}) {
        const int type = static_cast<int>(layout->type);
        if (layout->order > ROWS || layout->plane || layout->batch_mode || !data_bytes(type) ||
            is_complex(type))
            return refused(name, "such a layout");
        if (!is_layout(*layout) || layout->batches != c->batches) return INVALID_VALUE;
    }
    if (!is_operation(t.transa) || !is_operation(t.transb) || !data_bytes(t.scale) || is_complex(t.scale))
        return INVALID_VALUE;
    const auto fits_to = [&](const Layout& of, int operation) {
        return (operation ? of.columns : of.rows) == c->rows &&
               (operation ? of.rows : of.columns) == c->columns;
    };
    if (!fits_to(*a, t.transa) || (b && !fits_to(*b, t.transb))) return INVALID_VALUE;
    Handle own;
    own.settings.stream = stream;
    const auto at = [](const void* address) { return reinterpret_cast<uint64_t>(address); };
    const Operand from = operand_of(*a, at(A), t.transa), to = operand_of(*c, at(C));
    const Operand other = b ? operand_of(*b, at(B), t.transb) : Operand{};
    const bool on_host = t.pointers == ON_HOST;
    const Scalar x(on_host, alpha, data_bytes(t.scale));
    static constexpr double zero[2] = {};
    const Scalar y(b ? on_host : true, b ? beta : zero, data_bytes(t.scale));
    if (!rows || !columns) return SUCCESS;
    const int64_t width = std::clamp<int64_t>((1 << 17) / rows, 1, 1024);
    const uint64_t across = parts(columns, width);
    return submit(
        Context(own, name), across * static_cast<uint64_t>(c->batches),
        [=](uint64_t number, const Access& access) {
            const auto batch = static_cast<int64_t>(number / across);
            const int64_t first = static_cast<int64_t>(number % across) * width,
                          count = std::min(width, columns - first);
            const auto place = [&](const Operand& of, bool writing, const char* what) {
                const auto bytes = static_cast<int64_t>(data_bytes(of.type));
                const uint64_t begin =
                    of.address +
                    static_cast<uint64_t>((batch * of.batch_step + first * of.column_step) * bytes);
                access.check(begin,
                             static_cast<uint64_t>(
                                 ((rows - 1) * of.row_step + (count - 1) * of.column_step + 1) * bytes),
                             writing, what);
                return reinterpret_cast<char*>(begin);
            };
            const double p = x.get<double>(access, t.scale), q = y.get<double>(access, t.scale);
            const char* const one = p != 0 ? place(from, false, "A") : nullptr;
            const char* const two = q != 0 ? place(other, false, "B") : nullptr;
            char* const out = place(to, true, "C");
            const auto element = [](const char* base, const Operand& of, int64_t i, int64_t j) {
                return load<double>(
                    base + (i * of.row_step + j * of.column_step) * static_cast<int64_t>(data_bytes(of.type)),
                    of.type);
            };
            for (int64_t j = 0; j < count; ++j)
                for (int64_t i = 0; i < rows; ++i) {
                    double value = one ? p * element(one, from, i, j) : 0;
                    if (two) value += q * element(two, other, i, j);
                    store(out + (i * to.row_step + j * to.column_step) *
                                    static_cast<int64_t>(data_bytes(to.type)),
                          to.type, value);
                }
        });
}

#include "cublaslt_unsupported.inc"

}  // namespace gpukernel::simgpu_libraries::cublaslt
