#include "simgpu_libraries/cusparse/forms.h"

#include <atomic>
#include <memory>
#include <mutex>

#include "simgpu_libraries/cublas/context.h"
#include "simgpu_libraries/cusparse/sorting.h"

namespace gpukernel::simgpu_libraries::cusparse {

using cublas::parts;

namespace {
// The row of an element, by the offsets of the rows: those of elements one after the other are near.
class RowOf {
  public:
    RowOf(const Indices& offsets, int64_t rows, int64_t count)
        : offsets_(offsets), rows_(rows), most_(count + 1) {}
    // Whether the element is in any row.
    bool find(int64_t element) {
        if (!rows_ || offsets_.below(0, most_) > element || offsets_.below(rows_, most_) <= element)
            return false;
        if (row < 0) {
            int64_t low = 0, high = rows_;
            while (low + 1 < high) {
                const int64_t middle = low + (high - low) / 2;
                (offsets_.below(middle, most_) <= element ? low : high) = middle;
            }
            row = low;
        }
        while (row + 1 < rows_ && offsets_.below(row + 1, most_) <= element) ++row;
        return true;
    }
    int64_t row = -1;

  private:
    const Indices& offsets_;
    int64_t rows_, most_;
};

// Each line's elements, counted by several threads.  The memory is taken when the first of them runs.
class LineCounts {
  public:
    explicit LineCounts(int64_t lines) : lines_(static_cast<size_t>(lines)) {}
    std::atomic<int>* room() {
        std::call_once(once_, [this] { counts_ = std::make_unique<Room<std::atomic<int>>>(lines_); });
        return counts_->data();
    }
    const std::atomic<int>* get() const { return counts_ ? counts_->data() : nullptr; }

  private:
    size_t lines_;
    std::once_flag once_;
    std::unique_ptr<Room<std::atomic<int>>> counts_;
};

int32_t* writable(const Access& access, uint64_t array, int64_t first, int64_t end, const char* what) {
    const uint64_t from = array + static_cast<uint64_t>(first) * 4;
    access.check(from, static_cast<uint64_t>(end - first) * 4, true, what);
    return reinterpret_cast<int32_t*>(array);
}
}  // namespace

int coo_to_csr(const Context& context, uint64_t rows, int64_t count, int64_t m, uint64_t offsets, int base) {
    const auto counts = std::make_shared<LineCounts>(m);
    const uint64_t kept = static_cast<uint64_t>(m + 1) * sizeof(int);
    const int status = submit(
        context, parts(count, POINTS_AT_ONCE),
        [=](uint64_t piece, const Access& access) {
            const Indices of(access, rows, INDEX_32, base, count, "the rows");
            std::atomic<int>* const found = counts->room();
            const int64_t first = static_cast<int64_t>(piece) * POINTS_AT_ONCE;
            for (int64_t i = first; i < std::min(first + POINTS_AT_ONCE, count); ++i)
                found[of.below(i, m)].fetch_add(1, std::memory_order_relaxed);
        },
        kept);
    if (status) return status;
    return submit(
        context, 1,
        [=](uint64_t, const Access& access) {
            int32_t* const to = writable(access, offsets, 0, m + 1, "the offsets");
            const std::atomic<int>* const found = counts->get();
            int32_t sum = base;
            for (int64_t i = 0; i <= m; ++i) {
                to[i] = sum;
                if (found && i < m) sum += found[i].load(std::memory_order_relaxed);
            }
        },
        kept);
}

int csr_to_coo(const Context& context, uint64_t offsets, int64_t count, int64_t m, uint64_t rows, int base) {
    return submit(context, parts(count, POINTS_AT_ONCE), [=](uint64_t piece, const Access& access) {
        const Indices of(access, offsets, INDEX_32, base, m + 1, "the offsets");
        const int64_t first = static_cast<int64_t>(piece) * POINTS_AT_ONCE,
                      end = std::min(first + POINTS_AT_ONCE, count);
        int32_t* const to = writable(access, rows, first, end, "the rows");
        RowOf place(of, m, count);
        for (int64_t i = first; i < end; ++i)
            if (place.find(i)) to[i] = static_cast<int32_t>(place.row) + base;
    });
}

// A sort by columns; the rows are in the keys' other half, which is in order already.
int csr_to_csc(const Context& context, int64_t m, int64_t n, int64_t count, uint64_t values, uint64_t offsets,
               uint64_t columns, uint64_t to_values, uint64_t to_offsets, uint64_t to_rows, int type,
               int copy, int base, int, uint64_t) {
    const uint64_t size = bytes_of(type);
    if (!count)
        return submit(context, parts(n + 1, POINTS_AT_ONCE), [=](uint64_t piece, const Access& access) {
            const int64_t first = static_cast<int64_t>(piece) * POINTS_AT_ONCE,
                          end = std::min(first + POINTS_AT_ONCE, n + 1);
            int32_t* const to = writable(access, to_offsets, first, end, "the offsets of columns");
            std::fill(to + first, to + end, base);
        });
    const auto load = [=](int64_t first, int64_t end, Entry* entries, const Access& access) {
        const Indices rows_of(access, offsets, INDEX_32, base, m + 1, "the offsets");
        const Indices columns_of(access, columns, INDEX_32, base, count, "the columns");
        RowOf place(rows_of, m, count);
        for (int64_t i = first; i < end; ++i) {
            if (!place.find(i)) throw OutOfBounds{offsets, static_cast<uint64_t>(m + 1) * 4, "the offsets"};
            entries[i] = {static_cast<uint32_t>(columns_of.below(i, n)), static_cast<uint32_t>(place.row),
                          static_cast<uint32_t>(i)};
        }
    };
    const auto store = [=](int64_t first, int64_t end, const Entry* entries, const Access& access) {
        int32_t* const rows = writable(access, to_rows, first, end, "the rows");
        const auto from = reinterpret_cast<const char*>(values);
        char* const to = reinterpret_cast<char*>(to_values);
        if (copy) {
            access.check(values, static_cast<uint64_t>(count) * size, false, "the values");
            access.check(to_values + static_cast<uint64_t>(first) * size,
                         static_cast<uint64_t>(end - first) * size, true, "the values of columns");
        }
        for (int64_t i = first; i < end; ++i) {
            const auto column = int64_t{entries[i].high}, before = i ? int64_t{entries[i - 1].high} : -1;
            if (column > before) {  // columns without elements begin here, too
                int32_t* const begin =
                    writable(access, to_offsets, before + 1, column + 1, "the offsets of columns");
                std::fill(begin + before + 1, begin + column + 1, static_cast<int32_t>(i) + base);
            }
            rows[i] = static_cast<int32_t>(entries[i].low) + base;
            if (copy)
                std::memcpy(to + static_cast<uint64_t>(i) * size,
                            from + static_cast<uint64_t>(entries[i].at) * size, size);
        }
        if (end == count) {
            const auto last = int64_t{entries[count - 1].high};
            int32_t* const begin = writable(access, to_offsets, last + 1, n + 1, "the offsets of columns");
            std::fill(begin + last + 1, begin + n + 1, static_cast<int32_t>(count) + base);
        }
    };
    return sort(context, count, Sorting::DIGITS / 2, load, store);
}

namespace {
// Keys of 32 bits in the order of numbers with a sign.
uint32_t ordered(int32_t value) { return static_cast<uint32_t>(value) ^ 0x80000000u; }
int32_t number_of(uint32_t key) { return static_cast<int32_t>(key ^ 0x80000000u); }
}  // namespace

int sort_coo(const Context& context, bool by_row, int64_t count, uint64_t rows, uint64_t columns,
             uint64_t P) {
    if (!count) return SUCCESS;
    const uint64_t first_of = by_row ? rows : columns, then_of = by_row ? columns : rows;
    // P is permuted where it lies, so its numbers are kept.
    const auto numbers = std::make_shared<Room<int32_t>>();
    const auto once = std::make_shared<std::once_flag>();
    const auto load = [=](int64_t first, int64_t end, Entry* entries, const Access& access) {
        const auto bytes = static_cast<uint64_t>(end - first) * 4, skipped = static_cast<uint64_t>(first) * 4;
        access.check(rows + skipped, bytes, false, "the rows");
        access.check(columns + skipped, bytes, false, "the columns");
        const auto major = reinterpret_cast<const int32_t*>(first_of),
                   minor = reinterpret_cast<const int32_t*>(then_of);
        for (int64_t i = first; i < end; ++i)
            entries[i] = {ordered(major[i]), ordered(minor[i]), static_cast<uint32_t>(i)};
        if (!P) return;
        access.check(P + skipped, bytes, false, "P");
        std::call_once(*once, [&] { numbers->resize(static_cast<size_t>(count)); });
        std::memcpy(numbers->data() + first, reinterpret_cast<const void*>(P + skipped), bytes);
    };
    const auto store = [=](int64_t first, int64_t end, const Entry* entries, const Access& access) {
        int32_t* const major = writable(access, first_of, first, end, by_row ? "the rows" : "the columns");
        int32_t* const minor = writable(access, then_of, first, end, by_row ? "the columns" : "the rows");
        int32_t* const p = P ? writable(access, P, first, end, "P") : nullptr;
        for (int64_t i = first; i < end; ++i) {
            major[i] = number_of(entries[i].high), minor[i] = number_of(entries[i].low);
            if (p) p[i] = (*numbers)[entries[i].at];
        }
    };
    return sort(context, count, 0, load, store, P ? static_cast<uint64_t>(count) * 4 : 0);
}

}  // namespace gpukernel::simgpu_libraries::cusparse
