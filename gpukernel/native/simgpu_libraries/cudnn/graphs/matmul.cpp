// A product is cut into tiles of its result.  Each copies the rows and columns that it needs into matrices of
// one type, a stretch of K at a time, and multiplies them: OpenBLAS's work.
#include "simgpu_libraries/cudnn/graphs/matmul.h"

#include <memory>
#include <vector>

#include "simgpu_libraries/cudnn/gemm.h"

namespace gpukernel::simgpu_libraries::cudnn {

namespace {
constexpr int64_t SIDE = 256, MOST_TERMS = 512;
constexpr double MOST_PRODUCTS = 24e6;  // of a piece: about a millisecond

// What one tile reads or writes: `rows` × `columns` elements from `at`.
struct Part {
    const Tensor& of;
    int64_t at, rows, columns;

    Part(const Tensor& of, int64_t batch, int64_t row, int64_t column, int64_t rows, int64_t columns)
        : of(of), at(batch + row * row_step(of) + column * column_step(of)), rows(rows), columns(columns) {}
    static int64_t row_step(const Tensor& of) { return of.stride[of.rank - 2]; }
    static int64_t column_step(const Tensor& of) { return of.stride[of.rank - 1]; }

    template <class Function>
    void each(Function function) const {
        const bool by_columns = row_step(of) <= column_step(of);  // the order in which they lie
        for (int64_t outer = 0; outer < (by_columns ? columns : rows); ++outer)
            for (int64_t inner = 0; inner < (by_columns ? rows : columns); ++inner) {
                const int64_t i = by_columns ? inner : outer, j = by_columns ? outer : inner;
                function(j * rows + i, at + i * row_step(of) + j * column_step(of));
            }
    }
    template <class T>
    void read(T* to) const {
        with_element(of.type, [&]<class E>(E) {
            const auto* const from = reinterpret_cast<const typename E::Type*>(of.address);
            each([&](int64_t i, int64_t place) { to[i] = E::template get<T>(from[place]); });
        });
    }
    template <class T>
    void write(const T* values) const {
        with_element(of.type, [&]<class E>(E) {
            auto* const to = reinterpret_cast<typename E::Type*>(of.address);
            each([&](int64_t i, int64_t place) { to[place] = E::put(values[i]); });
        });
    }
};

template <class T>
struct Multiplication {
    Matmul p;
    int64_t side;
    uint64_t down, across;

    explicit Multiplication(const Matmul& given) : p(given) {
        const double least = static_cast<double>(std::max<int64_t>(p.k(), 1));
        side =
            std::clamp(static_cast<int64_t>(std::sqrt(MOST_PRODUCTS / least)) / 16 * 16, int64_t{16}, SIDE);
        down = parts(p.m(), side), across = parts(p.n(), side);
    }
    uint64_t tiles() const {
        uint64_t all = down * across;
        for (int i = 0; i < p.c.rank - 2; ++i) all *= static_cast<uint64_t>(p.c.extent[i]);
        return all;
    }

    // Where a batch of C begins in `of`: an extent that is a part of C's is repeated for neighbours.
    int64_t batch_of(const Tensor& of, uint64_t number) const {
        int64_t at = 0;
        for (int i = p.c.rank - 3; i >= 0; --i) {
            const auto extent = static_cast<uint64_t>(p.c.extent[i]);
            at += static_cast<int64_t>(number % extent) / (p.c.extent[i] / of.extent[i]) * of.stride[i];
            number /= extent;
        }
        return at;
    }
    int64_t length(int which, int64_t otherwise, uint64_t batch, const Access& access) const {
        if (!p.lengths[which]) return otherwise;
        p.lengths[which]->check(access, false, "a matrix's length");
        const double value = get(*p.lengths[which], batch_of(*p.lengths[which], batch));
        return std::clamp(static_cast<int64_t>(value), int64_t{0}, otherwise);
    }

    void run(uint64_t number, const Access& access) const {
        const int64_t row = static_cast<int64_t>(number % down) * side;
        number /= down;
        const int64_t column = static_cast<int64_t>(number % across) * side;
        const uint64_t batch = number / across;
        p.a.check(access, false, "a"), p.b.check(access, false, "b"), p.c.check(access, true, "c");
        const int64_t rows = std::min(side, p.m() - row), columns = std::min(side, p.n() - column);
        const int64_t m = length(0, p.m(), batch, access), n = length(1, p.n(), batch, access),
                      k = length(2, p.k(), batch, access);
        Room<T> sums(static_cast<size_t>(rows * columns));
        const int64_t most = std::min(k, MOST_TERMS);
        Room<T> left(static_cast<size_t>(rows * most)), right(static_cast<size_t>(most * columns));
        for (int64_t first = 0; first < k; first += most) {
            const int64_t terms = std::min(most, k - first);
            Part(p.a, batch_of(p.a, batch), row, first, rows, terms).read(left.data());
            Part(p.b, batch_of(p.b, batch), first, column, terms, columns).read(right.data());
            gemm<T>('N', 'N', rows, columns, terms, left.data(), rows, right.data(), terms, T(1), sums.data(),
                    rows);
        }
        for (int64_t j = 0; j < columns; ++j)
            for (int64_t i = 0; i < rows; ++i)
                if (row + i >= m || column + j >= n)
                    sums[static_cast<size_t>(j * rows + i)] = static_cast<T>(p.padding);
        Part(p.c, batch_of(p.c, batch), row, column, rows, columns).write(sums.data());
    }
};

template <class T>
int start(const Context& context, const Matmul& product) {
    const auto all = std::make_shared<Multiplication<T>>(product);
    return submit(context, all->tiles(),
                  [all](uint64_t number, const Access& access) { all->run(number, access); });
}

bool is_number(int type) { return type == FLOAT || type == DOUBLE || type == HALF || type == BFLOAT16; }
}  // namespace

int check(const Matmul& p, const char*& why) {
    if (p.c.rank < 2 || p.a.rank != p.c.rank || p.b.rank != p.c.rank) return BAD_PARAM;
    const int rows = p.c.rank - 2, columns = p.c.rank - 1;
    for (const Tensor* of : {&p.a, &p.b, &p.c}) {
        if (!of->valid()) return BAD_PARAM;
        if (!is_number(of->type)) return why = "a product of matrices of that type", NOT_SUPPORTED;
        if ((of->type == DOUBLE) != p.wide())
            return why = "a product of matrices of double with another type", NOT_SUPPORTED;
        for (int i = 0; i < rows; ++i)
            if (p.c.extent[i] % of->extent[i]) return BAD_PARAM;
    }
    if (p.a.extent[rows] != p.m() || p.b.extent[columns] != p.n() || p.b.extent[rows] != p.k())
        return BAD_PARAM;
    for (const auto& length : p.lengths) {
        if (!length) continue;
        if (length->rank != p.c.rank || length->extent[rows] != 1 || length->extent[columns] != 1)
            return BAD_PARAM;
        if (length->type != INT32 && length->type != INT64)
            return why = "lengths of matrices that are no integers", NOT_SUPPORTED;
        for (int i = 0; i < rows; ++i)
            if (p.c.extent[i] % length->extent[i]) return BAD_PARAM;
    }
    return SUCCESS;
}

int multiply(const Context& context, const Matmul& product) {
    return product.wide() ? start<double>(context, product) : start<float>(context, product);
}

}  // namespace gpukernel::simgpu_libraries::cudnn
