// The recent utilisation of the GPU.  The caller passes the times.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>

namespace gpukernel::worker {

// A ring of the busy seconds in each of the last 16 tenths of a second.
class Activity {
  public:
    using Time = std::chrono::steady_clock::time_point;

    // Adds a span in which the GPU was busy; spans come in order and do not overlap.
    void busy(Time from, Time to) {
        from = std::max(from, to - SPAN * static_cast<int>(tenths_.size()));
        while (from < to) {
            const int64_t number = from.time_since_epoch() / SPAN;
            const Time end = std::min(to, Time((number + 1) * SPAN));
            Tenth& tenth = tenths_[number % tenths_.size()];
            if (tenth.number != number) tenth = {number, {}};
            tenth.busy += end - from;
            from = end;
        }
    }

    // The utilisation, 0 to 1, over the second before `now`.
    double share(Time now) const {
        const int64_t newest = now.time_since_epoch() / SPAN, oldest = newest - 9;
        std::chrono::duration<double> sum{};
        for (const Tenth& tenth : tenths_)
            if (tenth.number >= oldest && tenth.number <= newest) sum += tenth.busy;
        return std::clamp(sum / (now - Time(oldest * SPAN)), 0.0, 1.0);
    }

  private:
    static constexpr std::chrono::steady_clock::duration SPAN = std::chrono::milliseconds(100);
    struct Tenth {
        int64_t number = -1;
        std::chrono::steady_clock::duration busy{};
    };
    std::array<Tenth, 16> tenths_;
};

}  // namespace gpukernel::worker
