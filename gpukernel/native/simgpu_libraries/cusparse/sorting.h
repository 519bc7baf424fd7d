// Keys brought into order in a stream, in pieces: a radix sort, which is stable.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "simgpu_libraries/cusparse/context.h"

namespace gpukernel::simgpu_libraries::cusparse {

// A key of two halves, and where it was.
struct Entry {
    uint32_t high, low, at;
};

// What the pieces of one sort share; its memory is taken when the first of them runs.
class Sorting {
  public:
    static constexpr int64_t AT_ONCE = 1 << 16;
    static constexpr unsigned DIGITS = 8, VALUES = 256;

    explicit Sorting(int64_t count) : count_(count), chunks_((count + AT_ONCE - 1) / AT_ONCE) {}
    static uint64_t host_bytes(int64_t count) {
        return static_cast<uint64_t>(count) * 2 * sizeof(Entry) +
               static_cast<uint64_t>(count / AT_ONCE + 1) * VALUES * sizeof(uint32_t);
    }
    uint64_t chunks() const { return static_cast<uint64_t>(chunks_); }
    int64_t first_of(uint64_t chunk) const { return static_cast<int64_t>(chunk) * AT_ONCE; }
    int64_t end_of(uint64_t chunk) const { return std::min(first_of(chunk) + AT_ONCE, count_); }

    // Where a chunk's entries go before they are sorted, and that they are there.
    Entry* room() {
        std::call_once(once_, [this] {
            for (auto& one : entries_) one.resize(static_cast<size_t>(count_));
            counts_.resize(static_cast<size_t>(chunks_));
        });
        return entries_[0].data();
    }
    void loaded() { ++loaded_; }
    // Whether all are: a piece that met a fault loads none.
    bool complete() const { return loaded_ == chunks_; }
    const Entry* sorted() const { return entries_[now_].data(); }

    // The three steps for a digit, one after the other; the pieces of the first and the last are chunks.
    void count(unsigned digit, uint64_t chunk) {
        if (!complete()) return;
        std::array<uint32_t, VALUES> found{};
        const Entry* const from = entries_[now_].data();
        for (int64_t i = first_of(chunk); i < end_of(chunk); ++i) ++found[digit_of(from[i], digit)];
        counts_[chunk] = found;
    }
    void add_up() {  // from counts to places
        if (!complete()) return;
        uint32_t place = 0;
        bool several = true;
        for (unsigned value = 0; value < VALUES; ++value) {
            const uint32_t before = place;
            for (auto& chunk : counts_) place += std::exchange(chunk[value], place);
            if (place - before == static_cast<uint32_t>(count_)) several = false;
        }
        from_ = now_;
        if ((moves_ = several)) now_ ^= 1;  // all have the same: they stay where they are
    }
    void move(unsigned digit, uint64_t chunk) {
        if (!complete() || !moves_) return;
        std::array<uint32_t, VALUES> place = counts_[chunk];
        const Entry* const from = entries_[from_].data();
        Entry* const to = entries_[from_ ^ 1].data();
        for (int64_t i = first_of(chunk); i < end_of(chunk); ++i)
            to[place[digit_of(from[i], digit)]++] = from[i];
    }

  private:
    static unsigned digit_of(const Entry& entry, unsigned digit) {
        return (digit < 4 ? entry.low >> (8 * digit) : entry.high >> (8 * (digit - 4))) & (VALUES - 1);
    }
    const int64_t count_, chunks_;
    std::once_flag once_;
    Room<Entry> entries_[2];
    Room<std::array<uint32_t, VALUES>> counts_;
    std::atomic<int64_t> loaded_{0};
    unsigned now_ = 0, from_ = 0;
    bool moves_ = false;
};

// Submits a sort of `count` entries by the digits from `lowest` on.  `load` fills those from `first` to
// before `end`; `store` gets all in order, and does with those what is to be done.  `kept` is what the two
// keep of the host's memory.
using Load = std::function<void(int64_t first, int64_t end, Entry* entries, const Access& access)>;
using Store = std::function<void(int64_t first, int64_t end, const Entry* entries, const Access& access)>;
inline int sort(const Context& context, int64_t count, unsigned lowest, Load load, Store store,
                uint64_t kept = 0) {
    const auto sorting = std::make_shared<Sorting>(count);
    const auto abandoned = std::make_shared<std::atomic<bool>>(false);
    const uint64_t chunks = sorting->chunks(), bytes = Sorting::host_bytes(count) + kept;
    int status = submit(context, chunks, [=](uint64_t chunk, const Access& access) {
        if (*abandoned) return;
        load(sorting->first_of(chunk), sorting->end_of(chunk), sorting->room(), access);
        sorting->loaded();
    });
    for (unsigned digit = lowest; digit < Sorting::DIGITS && !status; ++digit) {
        status =
            submit(context, chunks, [=](uint64_t chunk, const Access&) { sorting->count(digit, chunk); });
        if (!status) status = submit(context, 1, [=](uint64_t, const Access&) { sorting->add_up(); });
        if (!status)
            status =
                submit(context, chunks, [=](uint64_t chunk, const Access&) { sorting->move(digit, chunk); });
    }
    // Without memory for all of it everything is given up.
    if (!status)
        status = submit(
            context, chunks,
            [=](uint64_t chunk, const Access& access) {
                if (sorting->complete())
                    store(sorting->first_of(chunk), sorting->end_of(chunk), sorting->sorted(), access);
            },
            bytes);
    if (status) *abandoned = true;
    return status;
}

}  // namespace gpukernel::simgpu_libraries::cusparse
