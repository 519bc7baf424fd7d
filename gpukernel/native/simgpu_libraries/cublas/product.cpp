// The product is cut into tiles of the result.  A tile whose operands have one type of OpenBLAS's is
// OpenBLAS's; else its operands are converted, a stretch of k at a time, and the products added up in the
// type of the computation.
#include "simgpu_libraries/cublas/product.h"

#include <vector>

#include "simgpu_libraries/openblas.h"

namespace gpukernel::simgpu_libraries::cublas {

namespace {
constexpr double MOST_FLOPS = 48e6;  // of a tile: about a millisecond
constexpr int64_t MOST_SIDE = 512, LEAST_SIDE = 32, MOST_TERMS = 1024;

template <class T>
void blas_gemm(char ta, char tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
               const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
    const auto gemm =
        GPUKERNEL_BLAS(T, "gemm", const char*, const char*, const int*, const int*, const int*, const T*,
                       const T*, const int*, const T*, const int*, const T*, T*, const int*);
    const int mi = static_cast<int>(m), ni = static_cast<int>(n), ki = static_cast<int>(k),
              la = static_cast<int>(lda), lb = static_cast<int>(ldb), lc = static_cast<int>(ldc);
    gemm(&ta, &tb, &mi, &ni, &ki, &alpha, a, &la, b, &lb, &beta, c, &lc);
}

// The part of an operand that a tile uses; where it lies, checked.
char* part(const Operand& of, int64_t batch, int64_t row, int64_t column, int64_t rows, int64_t columns,
           bool writing, const Access& access, const char* what) {
    const auto bytes = static_cast<int64_t>(data_bytes(of.type));
    __int128 base = of.address;
    if (of.pointers)
        base = access.read<uint64_t>(of.address + static_cast<uint64_t>(batch) * 8, "an array of addresses");
    else
        base += static_cast<__int128>(batch) * of.batch_step * bytes;
    const __int128 from =
        base +
        (static_cast<__int128>(row) * of.row_step + static_cast<__int128>(column) * of.column_step) * bytes;
    const __int128 span = (static_cast<__int128>(rows - 1) * of.row_step +
                           static_cast<__int128>(columns - 1) * of.column_step + 1) *
                          bytes;
    if (from < 0 || from >> 63 || span >> 63) throw OutOfBounds{of.address, ~uint64_t{0}, what};
    access.check(static_cast<uint64_t>(from), static_cast<uint64_t>(span), writing, what);
    return reinterpret_cast<char*>(static_cast<uint64_t>(from));
}

// Copies rows × columns elements into columns of numbers.
template <class T>
void convert(const Operand& of, const char* from, int64_t rows, int64_t columns, T* to) {
    const auto bytes = static_cast<int64_t>(data_bytes(of.type));
    const bool along_rows = of.row_step <= of.column_step;  // the order in which they lie
    for (int64_t outer = 0; outer < (along_rows ? columns : rows); ++outer)
        for (int64_t inner = 0; inner < (along_rows ? rows : columns); ++inner) {
            const int64_t i = along_rows ? inner : outer, j = along_rows ? outer : inner;
            const T value = load<T>(from + (i * of.row_step + j * of.column_step) * bytes, of.type);
            to[j * rows + i] = of.conjugated ? conjugate(value) : value;
        }
}

bool same_place(const Operand& a, const Operand& b) {
    return a.address == b.address && a.type == b.type && a.row_step == b.row_step &&
           a.column_step == b.column_step && a.batch_step == b.batch_step && a.pointers == b.pointers;
}

// An operand that OpenBLAS takes as it lies: in columns, or in rows.
template <class T>
bool is_plain(const Operand& of) {
    return of.type == type_of<T> && (of.row_step == 1 || of.column_step == 1) && of.row_step <= INT32_MAX &&
           of.column_step <= INT32_MAX;
}

template <class T>
struct Multiplication {
    Product p;
    Scalar alpha, beta;
    int64_t rows, columns;  // of a tile
    uint64_t across, down;

    bool direct() const {
        return is_plain<T>(p.a) && is_plain<T>(p.b) && is_plain<T>(p.d) && p.d.row_step == 1 &&
               same_place(p.c, p.d) && (!p.a.conjugated || p.a.row_step != 1 || p.a.column_step == 1) &&
               !p.epilogue && !p.alpha_vector && !p.a_factor && !p.b_factor && !p.c_factor && !p.d_factor &&
               p.scale == type_of<T> && p.k <= INT32_MAX;
    }

    void run(uint64_t number, const Access& access) const {
        const auto batch = static_cast<int64_t>(number / (across * down));
        const uint64_t in_batch = number % (across * down);
        const int64_t row = static_cast<int64_t>(in_batch % down) * rows,
                      column = static_cast<int64_t>(in_batch / down) * columns;
        const Tile tile{row, column, std::min(rows, p.m - row), std::min(columns, p.n - column), batch};
        if (p.k && direct()) return by_openblas(tile, access);
        converted(tile, access);
    }

    // 'N' where it lies in columns.
    static char order(const Operand& of, bool by_rows) { return !by_rows ? 'N' : of.conjugated ? 'C' : 'T'; }

    void by_openblas(const Tile& t, const Access& access) const {
        const T scale = alpha.get<T>(access), keep = beta.get<T>(access);
        char* const d = part(p.d, t.batch, t.row, t.column, t.rows, t.columns, true, access, "C");
        const char* const a = part(p.a, t.batch, t.row, 0, t.rows, p.k, false, access, "A");
        const char* const b = part(p.b, t.batch, 0, t.column, p.k, t.columns, false, access, "B");
        // A matrix of one row or column lies both ways; OpenBLAS wants a leading dimension that fits.
        const bool a_rows = p.a.row_step != 1 || p.a.conjugated, b_rows = p.b.row_step != 1 || p.b.conjugated;
        const int64_t lda = std::max(a_rows ? p.a.row_step : p.a.column_step, a_rows ? p.k : t.rows);
        const int64_t ldb = std::max(b_rows ? p.b.row_step : p.b.column_step, b_rows ? t.columns : p.k);
        blas_gemm<T>(order(p.a, a_rows), order(p.b, b_rows), t.rows, t.columns, p.k, scale,
                     reinterpret_cast<const T*>(a), lda, reinterpret_cast<const T*>(b), ldb, keep,
                     reinterpret_cast<T*>(d), std::max(p.d.column_step, t.rows));
    }

    void converted(const Tile& t, const Access& access) const {
        Room<T> sums(static_cast<size_t>(t.rows * t.columns));
        if (p.k) {
            const int64_t most = std::min(p.k, MOST_TERMS);
            Room<T> left(static_cast<size_t>(t.rows * most)), right(static_cast<size_t>(most * t.columns));
            for (int64_t first = 0; first < p.k; first += most) {
                const int64_t terms = std::min(most, p.k - first);
                convert(p.a, part(p.a, t.batch, t.row, first, t.rows, terms, false, access, "A"), t.rows,
                        terms, left.data());
                convert(p.b, part(p.b, t.batch, first, t.column, terms, t.columns, false, access, "B"), terms,
                        t.columns, right.data());
                blas_gemm<T>('N', 'N', t.rows, t.columns, terms, T(1), left.data(), t.rows, right.data(),
                             terms, T(1), sums.data(), t.rows);
            }
        }
        using Sum = std::conditional_t<complex_type<T>, Z, double>;
        const auto factor = [&](uint64_t address) {
            return Sum(address ? static_cast<double>(access.read<float>(address, "a scale")) : 1.0);
        };
        const Sum keep = beta.get<Sum>(access, p.scale) * factor(p.c_factor);
        const Sum both = factor(p.a_factor) * factor(p.b_factor), last = factor(p.d_factor);
        Sum scale = p.alpha_vector ? Sum(0) : alpha.get<Sum>(access, p.scale);
        Room<Sum> values(sums.begin(), sums.end());
        const char* before = nullptr;
        if (keep != Sum(0))
            before = part(p.c, t.batch, t.row, t.column, t.rows, t.columns, false, access, "C");
        char* const to = part(p.d, t.batch, t.row, t.column, t.rows, t.columns, true, access, "D");
        const auto c_bytes = static_cast<int64_t>(data_bytes(p.c.type)),
                   d_bytes = static_cast<int64_t>(data_bytes(p.d.type));
        const char* factors = nullptr;
        if (p.alpha_vector)
            factors = part(*p.alpha_vector, t.batch, t.row, 0, t.rows, 1, false, access, "the vector alpha");
        for (int64_t j = 0; j < t.columns; ++j)
            for (int64_t i = 0; i < t.rows; ++i) {
                Sum& value = values[static_cast<size_t>(j * t.rows + i)];
                if (factors)
                    scale = load<Sum>(factors + i * static_cast<int64_t>(data_bytes(p.alpha_vector->type)),
                                      p.alpha_vector->type);
                value *= scale * both;
                if (before)
                    value += keep *
                             load<Sum>(before + (i * p.c.row_step + j * p.c.column_step) * c_bytes, p.c.type);
            }
        if constexpr (!complex_type<T>)
            if (p.epilogue) p.epilogue(t, values.data(), access);
        for (int64_t j = 0; j < t.columns; ++j)
            for (int64_t i = 0; i < t.rows; ++i)
                store(to + (i * p.d.row_step + j * p.d.column_step) * d_bytes, p.d.type,
                      last * values[static_cast<size_t>(j * t.rows + i)]);
    }
};

template <class T>
int start(const Context& context, Product product, const Scalar& alpha, const Scalar& beta) {
    // As many rows as columns, fewer of both the longer the sums are.
    const double work =
        2.0 * static_cast<double>(std::max<int64_t>(product.k, 1)) * (complex_type<T> ? 4 : 1);
    const int64_t side =
        std::clamp(static_cast<int64_t>(std::sqrt(MOST_FLOPS / work)) / 16 * 16, LEAST_SIDE, MOST_SIDE);
    auto all = std::make_shared<Multiplication<T>>(
        Multiplication<T>{std::move(product), alpha, beta, side, side, 0, 0});
    all->down = parts(all->p.m, side), all->across = parts(all->p.n, side);
    uint64_t tiles;
    if (__builtin_mul_overflow(all->down, all->across, &tiles) ||
        __builtin_mul_overflow(tiles, static_cast<uint64_t>(all->p.batches), &tiles))
        return INVALID_VALUE;
    return submit(context, tiles, [all](uint64_t number, const Access& access) { all->run(number, access); });
}

int refused(const Context& context, const Product& p) {
    libraries::complain(std::string(context.name) + ": there is no product of types " +
                        std::to_string(p.a.type) + " and " + std::to_string(p.b.type) + " into " +
                        std::to_string(p.d.type) + " (cudaDataType) by the computation " +
                        std::to_string(p.compute) + " (cublasComputeType_t) on a simulated device");
    return NOT_SUPPORTED;
}
}  // namespace

int multiply(const Context& context, const Product& p, const Scalar& alpha, const Scalar& beta) {
    const int types[] = {p.a.type, p.b.type, p.c.type, p.d.type};
    if (std::any_of(std::begin(types), std::end(types), [](int type) { return !data_bytes(type); }))
        return refused(context, p);
    const auto complex = std::count_if(std::begin(types), std::end(types), is_complex);
    const auto is = [&](int type, int value) { return type == value; };
    const auto any = [&](int type) { return std::count(std::begin(types), std::end(types), type) > 0; };
    const bool small = !any(R_64F) && !any(C_64F) && !any(R_32I);
    if (!p.m || !p.n || !p.batches) return SUCCESS;
    switch (p.compute) {
        case COMPUTE_32I:
        case COMPUTE_32I_PEDANTIC: {  // exact: the sums of products of bytes are integers below 2^53
            const auto byte = [](int type) { return type == R_8I || type == R_8U; };
            if (!byte(p.a.type) || !byte(p.b.type) || (!is(p.d.type, R_32I) && !is(p.d.type, R_8I)))
                return refused(context, p);
            return start<D>(context, p, alpha, beta);
        }
        case COMPUTE_64F:
        case COMPUTE_64F_PEDANTIC:
            if (complex == 4 && std::count(std::begin(types), std::end(types), C_64F) == 4)
                return start<Z>(context, p, alpha, beta);
            if (std::count(std::begin(types), std::end(types), R_64F) == 4)
                return start<D>(context, p, alpha, beta);
            return refused(context, p);
        default:
            if (!scale_bytes(p.compute, p.d.type) || !small || (complex && complex != 4))
                return refused(context, p);
            if (complex) return start<C>(context, p, alpha, beta);
            return start<S>(context, p, alpha, beta);
    }
}

}  // namespace gpukernel::simgpu_libraries::cublas
