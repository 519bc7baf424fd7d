// Writes with AVX2, FMA, BMI2 and F16C what the generator says in terms of AVX-512: 32 vectors of 512 bits
// and masks of a bit for each lane.
//
// Each of those vectors is two halves.  The values that are used most have their halves in registers of the
// processor for good (`kPinned`); the others have a place in memory, the frame, and the remaining registers
// are a cache of it.  Wherever code may be reached from elsewhere the frame is right and the cache empty:
// `meet` and `part` see to that.  Masks lie in the frame, as numbers of 32 bits; an operation under a mask
// blends, with the mask spread over the lanes.
//
// General register r11 is the back end's own, and masks change the flags: the generator must use flags right
// behind the instruction that sets them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "simgpu/compiler/assembler.h"

namespace gpukernel::simgpu::compiler {

class Avx2 {
  public:
    struct Literals {
        std::function<Memory(std::vector<uint64_t> words)> put;
        std::function<uint32_t(int32_t at)> word;  // of those that have been put, behind r15
    };
    // `frame`: where it lies behind r15; `from`: from where on nothing there changes.
    Avx2(Assembler& a, uint32_t frame, uint32_t from, Literals literals);
    static constexpr uint32_t kVectorBytes = 64, kVectorCount = 32, kMasks = kVectorBytes * kVectorCount;
    static constexpr uint32_t kRooms = kMasks + 64, kFrameBytes = kRooms + 2 * 64;

    void vector(Encoding i, int to, int first, int second, int k, bool half);
    void vector(Encoding i, int to, int first, Memory second, int k, bool half);
    bool awaits_immediate() const { return awaits_; }
    void complete(uint8_t immediate);  // the last byte of the instruction before
    void sixteen_bytes(bool stores, int v, Memory m);
    void vector_from(int v, Gpr from, bool wide);  // into the first lane
    void vector_to(Gpr to, int v, bool wide);

    void mask_from(int k, Gpr from);
    void mask_from(int k, Memory from);
    void mask_to(Gpr to, int k);
    void mask_shift_right(int to, int from, uint8_t bits);
    void mask_unpack(int to, int high, int low, bool words);
    void mask(bool ands, int to, int a, int b);

    void part();                // in front of a jump
    void meet();                // where others may come
    void forget();              // behind a jump or a call
    void only(uint32_t alive);  // of the vectors the others are not read any more
    bool failed() const { return failed_; }

  private:
    static constexpr int kFirstPinned = 6, kPinned = 4, kRegisters = 16, kPool = kRegisters - 2 * kPinned;

    Assembler& a_;
    const uint32_t frame_, from_;
    const Literals literals_;
    bool failed_ = false;

    // The instruction at hand.
    struct Second {
        bool is_memory = false;
        int v = 0;
        Memory at{rax};
    };
    Encoding i_{};
    int to_ = 0, first_ = 0, k_ = 0;
    bool half_ = false, awaits_ = false;
    Second second_;
    uint8_t imm_ = 0;
    void begin(Encoding i, int to, int first, Second second, int k, bool half);
    void write();
    bool write_float();
    bool write_integer();
    bool write_permutation();
    bool write_move();
    bool write_conversion();
    bool write_access();

    // cache.cpp
    enum class Kind : uint8_t { nothing, half, spread, constant };
    struct Held {
        Kind kind = Kind::nothing;
        bool dirty = false, locked = false;
        uint64_t what = 0, used = 0;
    };
    struct Source {  // an operand that may be in memory
        int reg = -1;
        Memory at{rax};
    };
    std::array<Held, kRegisters> held_;
    uint64_t clock_ = 0;
    std::array<int32_t, kVectorCount>
        known_;                // where what a vector has lies among the literals; 0: it is none
    std::array<int, 8> like_;  // a mask that is the same
    std::array<int, 8> bits_;  // of a mask, those that may be set
    static bool is_pinned(int v) { return v >= kFirstPinned && v < kFirstPinned + kPinned; }
    static int pin_of(int v, int h) { return kPool + 2 * (v - kFirstPinned) + h; }
    static uint64_t name(int v, int h) { return static_cast<uint64_t>(2 * v + h); }
    Memory frame(int v, int h) const;
    Memory mask_place(int k) const;
    Memory room_place(int n) const;
    int find(Kind kind, uint64_t what) const;
    int take();  // a register for the instruction at hand
    void give(int reg) { held_[static_cast<size_t>(reg)].locked = false; }
    void evict(int reg);
    void drop(Kind kind, uint64_t what);
    void drop_half(int v, int h) { drop(Kind::half, name(v, h)); }
    int hold(int reg);
    int read(int v, int h);
    int copy(int v, int h);  // in a register that may be changed
    int target(int v, int h);
    void put(int v, int h, int reg);
    void put(int v, int h, int reg, int k, int bytes);
    Source source(int v, int h);
    Source second(int h, int bytes = 4);
    int in_register(const Source& s);
    int second_in_register(int h, int bytes = 4) { return in_register(second(h, bytes)); }
    int constant(Memory m, int bytes);    // one number in all lanes
    int every(uint64_t word, int bytes);  // the same of a number that is known
    Memory table(std::vector<uint64_t> words);
    void release();
    void keep_only(const int* regs, int n);  // of those taken
    int count() const { return half_ ? 1 : 2; }

    // encoding.cpp
    void op(Encoding i, int to, int first, int second, bool large = true);
    void op(Encoding i, int to, int first, Memory m, bool large = true);
    void op(Encoding i, int to, int first, const Source& s, bool large = true);
    void op_with(Encoding i, int to, int first, int second, uint8_t imm, bool large = true);
    void op_with(Encoding i, int to, int first, const Source& s, uint8_t imm, bool large = true);
    void prefix(Encoding i, int to, int first, bool index, bool base, bool large);

    // masks.cpp
    int spread(int k, int bytes, int h);
    void forget_mask(int k);
    void set_mask(int k, int bits, int under);  // from r11
    void lanes_to_mask(int k, const int* lanes, int bytes, bool inverted, int under);
    void blend(int to, int otherwise, int where, int mask, int bytes);
    bool write_comparison();
    int compare_integers(int a, int b, uint8_t how, bool wide, bool is_signed, bool& inverted);

    // sequences
    void elementwise(bool one, int bytes);
    int table_of_bits(int b, int c, uint8_t how);
    int ternary(int h);
    int product(int a, int b);
    int extreme(int a, int b, bool least, bool is_signed);
    int select_by_bit(int index, int bit, int otherwise, int where);
    void permute_by_table(int32_t at);
    void widen(int ratio);
    int narrow(int one, int other, int from);
    void join(Encoding i, int imm);
    void gather(int element, int offset);
    void scatter(int element, int offset);
    void each_lane_of(int k, int lanes, const std::function<void()>& body);
    void store_lanes(Memory to, int k, int lanes, int bytes);
    void store(int bytes);
    void store_narrow();
    int double_of(int from, bool is_signed);
    int whole_of(int from);
};

}  // namespace gpukernel::simgpu::compiler
