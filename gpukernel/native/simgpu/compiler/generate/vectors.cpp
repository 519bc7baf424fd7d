// Loads and stores of two and four elements a lane.
#include <cstddef>

#include "simgpu/compiler/generate/generator.h"
#include "simgpu/compiler/generate/instructions.h"

namespace gpukernel::simgpu::compiler {

// Elements that permutations of whole vectors bring to their registers: eight or sixteen bytes a lane.
bool Generator::lies_apart(const MemoryOp& m) {
    return m.count > 1 && m.memory == m.reg && m.memory >= 4 && m.whole() <= 16;
}

bool Generator::vector_access(const MemoryOp& m) {
    if (!goes_by_line(*op_, *s_, m)) return false;
    if (step(s_->reads[0].operand) == 0)
        vector_for_all(m);
    else
        vector_row(m);
    return true;
}

// The numbers of places that a permutation takes its elements from.
Memory Generator::places(std::vector<uint64_t> numbers, uint32_t bytes) {
    if (bytes == 8) return literal(std::move(numbers), 64, false);
    std::vector<uint64_t> words;
    for (size_t n = 0; n < numbers.size(); n += 2) words.push_back(numbers[n] | numbers[n + 1] << 32);
    return literal(std::move(words), 64, false);
}

// One address for all lanes.
void Generator::vector_for_all(const MemoryOp& m) {
    need_masks();
    const auto slow = slow_for(m.where == MemoryOp::global, m.whole());
    const Memory at = line_address(m, m.whole(), *slow);
    for (uint32_t n = 0; n < m.count; ++n) {
        const Access to = element(m, n);
        if (!to.bytes) continue;
        a_.load_sized(rcx, Memory{at.base, at.displacement + static_cast<int32_t>(n * m.memory)}, m.memory,
                      m.is_signed, m.reg == 8);
        a_.vector(m.reg == 8 ? kBroadcastGprWide : kBroadcastGpr, 5, 0, static_cast<int>(rcx));
        for (int unit = 0; unit < units(to.bytes); ++unit) finish(to, unit, 5);
    }
    slow_path(slow);
}

// Lane beside lane.
void Generator::vector_row(const MemoryOp& m) {
    need_masks();
    const auto slow = slow_for(m.where == MemoryOp::global, int64_t{kLanes} * m.whole());
    Memory at = line_address(m, int64_t{kLanes} * m.whole(), *slow);
    at.bytes = 64;
    if (m.loads) {
        take_apart(m, at);
    } else {
        write_back(before_);  // for some of the ways to where they are dropped
        Label some, done;
        if (op_->guard == kNoGuard) {
            a_.alu(Assembler::compare, r12, -1, false);
            a_.jump(not_equal, some);
            put_together(m, at);
            a_.jump(done);
            a_.bind(some);
        }
        put_together(m, field(offsetof(Context, lanes) + sizeof(Context::lanes[0]), 64));
        drop_all();
        a_.place(r9, at);
        each_lane([&] {
            a_.move(rsi, rdx, true);
            a_.shift_left(rsi, m.whole() == 8 ? 3 : 4, true);
            a_.alu(Assembler::add, rsi, r9, true);
            copy_chunk(m, false);
        });
        a_.bind(done);
    }
    slow_path(slow);
}

// From where the elements of all lanes lie side by side to a register for each.
void Generator::take_apart(const MemoryOp& m, Memory from) {
    const bool wide = m.reg == 8;
    const Encoding permute = wide ? kPermuteTwoWide : kPermuteTwo;
    constexpr int in[] = {1, 2, 4, 5};
    const int vectors = m.count, lanes = wide ? 8 : 16;
    for (int unit = 0; unit < units(m.reg); ++unit) {
        for (int v = 0; v < vectors; ++v) {
            Memory here = from;
            here.displacement += 64 * (vectors * unit + v);
            a_.vector(kLoad, in[v], 0, here);
        }
        for (uint32_t n = 0; n < m.count; ++n) {
            const Access to = element(m, n);
            if (!to.bytes) continue;
            std::vector<uint64_t> from_lanes;
            for (int lane = 0; lane < lanes; ++lane)
                from_lanes.push_back(static_cast<uint64_t>(lane * m.count) + n);
            if (m.count == 4)  // of the lower half only
                for (int lane = 8; lane < 16; ++lane) from_lanes[static_cast<size_t>(lane)] = 0;
            const Memory table = places(std::move(from_lanes), m.reg);
            a_.vector(kLoad, 0, 0, table);
            a_.vector(permute, 0, in[0], in[1]);
            if (m.count == 4) {
                a_.vector(kLoad, 3, 0, table);
                a_.vector(permute, 3, in[2], in[3]);
                a_.vector(kInsertHalf, 0, 0, 3);
                a_.byte(1);
            }
            finish(to, unit, 0);
        }
    }
}

// The other way round.
void Generator::put_together(const MemoryOp& m, Memory to) {
    const bool wide = m.reg == 8;
    const uint64_t lanes = wide ? 8 : 16;
    const auto pairs = [&](uint64_t count, uint64_t half) {  // one of the first, one of the second …
        std::vector<uint64_t> numbers;
        for (uint64_t n = 0; n < count / 2; ++n)
            numbers.push_back(half * count / 2 + n), numbers.push_back(count + half * count / 2 + n);
        return places(std::move(numbers), count == 8 ? 8 : 4);
    };
    const auto store = [&](int reg, int vector) {
        Memory here = to;
        here.displacement += 64 * vector;
        a_.vector(kStore, reg, 0, here);
    };
    for (int unit = 0; unit < units(m.reg); ++unit) {
        constexpr int out[] = {0, 3, 4, 5};
        for (uint32_t n = 0; n < m.count; n += 2) {
            const int one = in_register(element(m, n), unit, 1),
                      other = in_register(element(m, n + 1), unit, 2);
            for (uint64_t half = 0; half < 2; ++half) {
                const int reg = out[n + half];
                a_.vector(kLoad, reg, 0, pairs(lanes, half));
                a_.vector(wide ? kPermuteTwoWide : kPermuteTwo, reg, one, other);
                if (m.count == 2) store(reg, 2 * unit + static_cast<int>(half));
            }
        }
        for (int v = 0; m.count == 4 && v < 4; ++v) {
            a_.vector(kLoad, 1, 0, pairs(8, static_cast<uint64_t>(v % 2)));
            a_.vector(kPermuteTwoWide, 1, out[v / 2], out[2 + v / 2]);
            store(1, 4 * unit + v);
        }
    }
}

}  // namespace gpukernel::simgpu::compiler
