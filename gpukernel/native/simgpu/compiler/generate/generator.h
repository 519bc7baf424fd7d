// Writes the code of one kernel.  The members are grouped by subject in the files of this folder.
//
// Registers of the processor: rbx a warp's registers, r12d the lanes that run, r13 the function's constants,
// r14 the warp, r15 the context, ebp the budget; zmm0 to zmm5, rax, rcx, rdx, rsi, rdi and r8 to r11 are free
// between operations, but for what `kept_` says of them, the other vectors belong to values.  k1 to k4 are
// the lanes that run, eight a mask from k1, k3, k2, k4 on; k5 to k7 are free.
#pragma once

#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "simgpu/compiler/machine_code.h"
#include "simgpu/compiler/vector_ops.h"

namespace gpukernel::simgpu::compiler {

constexpr int kFirstVector = 6, kVectors = 32;

class Generator {
  public:
    explicit Generator(MachineCode& image);
    void run();

  private:
    MachineCode& image_;
    const Flow& flow_;
    const Function& function_;
    Assembler a_;
    std::vector<Label> arrivals_, bodies_, agains_, checks_, entries_, turns_;
    std::vector<bool> turn_begins_;  // with which block of code
    std::vector<bool> follows_;      // who comes to it has come from the block before it, without a jump
    std::vector<bool> reached_;      // it is run at all
    // Where each block of code begins: the values whose vectors may not be what memory has, and those whose
    // vectors are wanted before all warps meet.
    std::vector<Set> changes_, near_;
    Label leave_, faulted_;
    std::vector<std::function<void()>> cold_;  // code that seldom runs, behind the rest
    std::vector<bool> settled_;                // operations that a launch does once
    bool keeps_exited_ = false;                // lanes may end before others
    bool touches_ = false;                     // it may say that it waits for others

    // Of the operation at hand.
    uint32_t block_ = 0, at_ = 0;
    const Op* op_ = nullptr;
    const Signature* s_ = nullptr;
    Set before_, behind_;  // what is alive
    Set changed_;          // whose vectors may have other numbers than its place in memory
    // The line that rax holds before the operation, and behind it: none but where it is known.
    uint32_t held_ = kNoGuard, holds_ = kNoGuard;
    // Lines and predicates that general registers have, and memory perhaps.
    static constexpr Gpr kKeeping[] = {r8, r9, r10, rsi, rdi};
    struct Keeping {
        uint32_t operand = kNoGuard;  // none: nobody
        bool changed = false;         // memory does not have it yet
    };
    using Kept = std::array<Keeping, std::size(kKeeping)>;
    Kept kept_;
    size_t next_kept_ = 0;
    // A number that all lanes share, or a line, and a vector that has it.
    struct Broadcast {
        Access of;
        int unit;  // of a line with a step; of others -1
        int reg;
        bool loaded;  // at the operation at hand
        bool stays;   // nothing in the block writes it
    };
    std::vector<Broadcast> broadcasts_;  // of the block at hand
    // Accesses of one block through one address, which are checked at once by the first of them.
    struct Together {
        uint32_t first = 0;        // operation
        int64_t from = 0, to = 0;  // bytes, from the address on
        uint32_t align = 1;
        int site = -1;
        uint32_t count = 0;
    };
    std::vector<int> together_of_;  // of each operation; -1: none
    std::vector<Together> together_;
    std::map<uint32_t, Label> apart_from_;  // of those that check
    bool apart_ = false;                    // code for when they do not all lie where they may
    int apart_of_ = -1;                     // the last block that has such code
    struct SideBySide {                     // a loop that several warps run together; 0 of them: none
        uint32_t block = 0;
        int count = 0;
        std::set<uint32_t> touched;                   // values that need vectors for each
        std::vector<std::map<uint8_t, uint8_t>> own;  // of each but the first, instead of the value's own
    };
    SideBySide abreast_;
    enum class Masks { unknown, running, guarded } masks_ = Masks::unknown;
    bool has_eights_ = false;  // of them, those of eight lanes that are not the first of sixteen

    bool full() const { return a_.size() > kMostOfOne; }  // the kernel is refused: the rest is in vain
    const CodeBlock& block() const { return flow_.blocks[block_]; }
    const Value& value(uint32_t operand) const { return flow_.values[flow_.value(operand)]; }
    bool is_line(uint32_t operand) const {
        return operand & 1 || value(operand).shape.kind == LaneShape::line;
    }
    int64_t step(uint32_t operand) const { return operand & 1 ? 0 : value(operand).shape.step; }
    bool merges(uint32_t operand) const;  // lanes that do not run keep what they have
    static int units(uint32_t bytes) { return static_cast<int>(bytes / 2); }

    // operands.cpp
    Memory scalar(uint32_t operand, uint8_t bytes);  // a line's first lane, or a constant, to be read
    Memory slot(uint32_t operand, int unit, uint8_t bytes = 64) const;
    Memory literal(std::vector<uint64_t> words, uint8_t bytes, bool broadcast);
    Memory every(uint64_t word, uint8_t bytes);  // one number, as a broadcast operand
    Memory lanes_of(int64_t step, uint32_t bytes, int unit);
    Memory field(size_t offset, uint8_t bytes = 4) const {
        return {r15, static_cast<int32_t>(offset), -1, bytes};
    }
    Memory warp_field(size_t offset, uint8_t bytes = 8) const {
        return {r14, static_cast<int32_t>(offset), -1, bytes};
    }
    int in_register(Access access, int unit, int scratch);
    void apply(Encoding i, int to, int first, Access second, int unit, int scratch, int k = 0);
    int half_in_register(Access access, int unit, int scratch);  // the unit-th eight lanes of 32 bits
    int home_of(Access access, int unit) const;                  // the vector that is a value's own, or -1
    int register_of(Access access, int unit) const;              // one that has it now, or -1
    int target(Access write, int unit) const;
    int mask_of(Access write, int unit);
    void finish(Access write, int unit, int reg);
    void need_masks(bool eights = true);
    void line_to_slot(uint32_t operand);
    void predicate_to(Gpr to, uint32_t operand, bool inverted);
    void put_predicate(uint32_t operand, Gpr from);
    void running_lanes(Gpr to);  // with the guard

    // kept.cpp: lines and predicates in general registers
    Memory home(uint32_t operand) const;
    Keeping* keeping(uint32_t operand);
    int kept(uint32_t operand);  // the register, or -1
    bool read_soon(uint32_t operand) const;
    void write_back(Keeping& k);
    void write_back(uint32_t operand);
    void write_back(const Set& alive);
    bool must_write_back(const Set& alive) const;
    void drop(uint32_t operand);
    void drop_all();
    void forget_all() { kept_ = {}; }
    Gpr register_for(uint32_t operand, uint32_t first);
    void put(uint32_t operand, Gpr from);
    void keep_again(const Kept& kept);
    void load_scalar(Gpr to, uint32_t operand, bool wide);
    void alu_scalar(Assembler::Alu what, Gpr to, uint32_t operand, bool wide);

    // broadcasts.cpp
    bool takes_broadcasts(uint32_t operation) const;
    bool is_broadcast(Access a) const;
    void find_broadcasts(uint32_t from, const Set& alive, const std::set<uint8_t>& others = {});
    bool repeats() const;
    void load_broadcast(Broadcast& each);
    void load_what_stays();
    void load_operands();
    int broadcast_of(Access a, int unit = -1) const;
    void drop_broadcast(uint32_t operand);
    void drop_broadcasts();
    void load_again(std::vector<Broadcast> broadcasts);

    // control.cpp
    void find_ways();
    void operations(uint32_t from, const std::vector<Set>& alive);
    void control();
    void branch();
    void leave_lanes();
    void exchange();
    void go_to(uint32_t block, bool back);
    void fall_through();
    void hand_over();
    Label& hand_over_label();
    void out_of_budget(uint32_t block);
    void leave(Left why);
    void leave_at(uint32_t operation, Left why);
    void write_checks();
    void write_entries();
    void write_thunk();
    void write_settled();
    int32_t cost_of(uint32_t operation) const;
    int32_t cost_of_loop(uint32_t from, uint32_t to) const;
    Memory waiting(uint32_t block) const { return field(image_.layout.waiting + 4 * block); }
    uint32_t next_check(uint32_t block) const;
    uint32_t vectors_of(const Set& alive) const;
    void flush(const Set& alive, const Set& changed);
    void reload(const Set& alive);

    // turns.cpp
    static bool is_plain_barrier(const Op& op);
    void note_change(uint32_t operation, Set& changed) const;
    bool reads_known(uint32_t operation, uint32_t operand) const;
    void find_changes();
    void like_the_first(int32_t end, Label& elsewhere);
    void next_warp(Label& was_last);
    void to_turn();
    void begin_turn(uint32_t block);
    void meet_in_turn(const std::shared_ptr<Label>& apart);
    void write_warps();
    void write_turn(uint32_t block, Label& between);

    // abreast.cpp
    bool goes_abreast(uint32_t operation, std::set<uint32_t>& touched) const;
    bool shows_nothing(const CodeBlock& block) const;
    bool comes_without_a_trace(uint32_t loop, const std::vector<std::vector<uint32_t>>& before) const;
    void find_abreast();
    Memory home_in(Gpr frame, const Value& line) const;
    void move_abreast(bool stores, int g, Gpr frame, const Set& alive);
    void store_abreast(const Set& alive);
    void say_abreast(Abreast what);
    void if_abreast(Abreast what, Label& to);
    void arrive_abreast();
    void run_abreast(const std::vector<Set>& alive, Label& begin, Label& alone);
    void go_on_abreast(uint32_t at, Abreast then, Label& to);
    void none_waits(Label& otherwise);

    // arithmetic.cpp
    void operation();
    bool line_result();
    void line_operation();
    void widened_reach(Access a, Gpr from);
    void multiply_by(Gpr to, uint64_t with, bool wide);
    void put_line(Access to, Gpr from);
    void vector_operation(const VectorOp& op);
    void fused(const VectorOp& op, int count);
    int compute(const VectorOp& op, int unit, int to);
    bool compare_scalars(const VectorOp& op);
    void compare(const VectorOp& op);
    void predicate(const VectorOp& op);
    void extreme(const VectorOp& op, int unit, int to);
    void special();

    // memory.cpp
    bool memory();
    bool sums_alike(const MemoryOp& m) const;
    struct Slow {  // the way by the handler
        Label begin, back;
        int site = -1;           // of global memory
        bool never = false;      // another access has checked for it
        Kept kept, kept_behind;  // where the operation begins, and where it has ended
    };
    void call(const Slow* slow = nullptr);
    int new_site(int64_t span);
    std::shared_ptr<Slow> slow_for(bool at_a_site, int64_t span);
    Label& aside(std::function<void()> write, std::shared_ptr<Slow> slow);
    void slow_path(std::shared_ptr<Slow> slow);
    Memory site_field(int site, size_t offset) const {
        return field(image_.layout.sites + sizeof(Site) * static_cast<uint32_t>(site) + offset, 8);
    }
    void in_site(int site, Label& elsewhere);
    void in_room(Gpr from, bool narrow, Memory room, int64_t span, Label& elsewhere);
    enum class Reach : uint8_t { site, shared, shared_window, param, local };  // where addresses may lie
    void check_lanes(Access address, uint32_t bytes, int64_t imm, Reach reach, int site, Label& otherwise);
    void line_access(const MemoryOp& m);
    void scattered_access(const MemoryOp& m);
    void load_far(Access address, Access data, int32_t imm);
    void side_by_side(int index, bool wide, int32_t imm, int to, int site, Label& done);
    Memory line_address(const MemoryOp& m, int64_t span, Slow& slow);
    const Together* together() const;

    // shared.cpp
    static constexpr int kHalfLanes = kLanes / 2;
    static constexpr int32_t kAllOfHalf = (1 << kHalfLanes) - 1;
    static constexpr int32_t kWindow = 128;  // bytes from the first lane's place on that two vectors have
    static bool is_shared_access(const Op& op, const MemoryOp& m);
    bool shared_access(const MemoryOp& m);
    void shared_each(const MemoryOp& m, Slow& slow);
    int half_of_addresses(Access address, int unit);
    void check_room(int32_t least, int32_t most, Label& elsewhere);
    int from_least(int index, int32_t least);
    void check_halves(Access address, int32_t least, int32_t most, bool running, int* index,
                      Label& elsewhere);

    // places.cpp
    struct Place {
        uint32_t operand;
        int32_t least, most;  // offsets with which it is used
        bool counts;          // how often it is looked at anew
    };
    std::vector<Place> places_;
    void find_places();
    int place_of(uint32_t operand) const;
    Memory place_state(int place) const;
    Memory place_room(int place, int32_t at) const;
    void forget_place(uint32_t operand);
    void recognise_place(int place, Label& elsewhere, Label& otherwise);
    void learn_place(int place, Label& elsewhere);
    void say_known(int place);
    void known_access(const MemoryOp& m, int place, const std::shared_ptr<Slow>& slow);
    void load_near(int place, int unit, Gpr first, Gpr last, int32_t imm, int to);
    void load_as_it_lies(int place, int unit, Gpr first, int32_t imm, int to);
    // Its pointers, in general registers as if they were operands.
    static constexpr uint32_t kFirstPointer = 0xfffff000;
    static bool is_pointer(uint32_t operand) {
        return operand >= kFirstPointer && operand < kFirstPointer + 8 * kPlaceStates;
    }
    static uint32_t pointer_operand(int place, int n) {
        return kFirstPointer + 2 * static_cast<uint32_t>(4 * place + n);
    }
    Gpr pointer(int place, int n, Gpr otherwise);
    void drop_pointer(int place, int n);
    void load_pointer(Gpr to, uint32_t operand);
    void load_pointers(const Kept& kept);
    void known_half(const MemoryOp& m, int place, int unit);

    // together.cpp
    void find_together();
    bool goes_by_line(const Op& op, const Signature& s, const MemoryOp& m) const;
    static bool loads_part(const MemoryOp& m, int64_t by);
    static int64_t span_of(const MemoryOp& m, int64_t by);
    bool checked_for_each_lane(const Op& op, const Signature& s, const MemoryOp& m) const;
    bool checked_as_line(const Op& op, const Signature& s, const MemoryOp& m) const;
    Label& each_apart();
    Access element(const MemoryOp& m, uint32_t n) const;
    static bool lies_apart(const MemoryOp& m);
    bool plain_access(const MemoryOp& m);
    void parameter();  // whose place is known

    // vectors.cpp: of two and four elements
    bool vector_access(const MemoryOp& m);
    void vector_for_all(const MemoryOp& m);
    void vector_row(const MemoryOp& m);
    void take_apart(const MemoryOp& m, Memory from);
    void put_together(const MemoryOp& m, Memory to);
    Memory places(std::vector<uint64_t> numbers, uint32_t bytes);

    // integers.cpp
    uint64_t constant(uint32_t operand, uint32_t bytes) const;
    void each_unit(const std::function<int(int unit)>& compute);
    bool integer_form();
    bool bit_field();
    void quotient(bool remainder, bool is_signed);
    void wide_quotient(bool remainder);

    // halves.cpp
    bool half_form();
    bool words();
    void floats_of(bool brain, Access access, int n, int to);
    void round_to_halves(bool brain, int reg, int scratch, int k);
    void halves(bool brain, const std::function<void(int half, int to)>& compute);
    void fused_halves(Access a, Access b, Access c, int n, int to);

    // lanes.cpp: one lane after the other
    Memory lane_place(int n, uint32_t bytes) const;  // of the lane in rdx
    void spill(Access access, int n);
    void unspill(Access write, int n);
    void each_lane(const std::function<void()>& body);  // its number is in rdx; rcx is taken
    bool address_in_shared_window() const;
    bool lane_access(const MemoryOp& m);
    void copy_chunk(const MemoryOp& m, bool to_lanes);
    bool atomic();
    void update_all_lanes(const AtomicOp& m);
    void flush(Gpr r);
    void update_lane(const AtomicOp& m, bool wanted, bool locks);

    // exchange.cpp: between lanes
    bool exchange_natively();
    void shuffle();
    void vote();
    void reduce();
    void same_for_all(Access write, Gpr from);
    Memory table_of(const std::function<uint32_t(uint32_t lane)>& value, int unit);
};

// allocate.cpp: the processor's vectors go to the values that are used most.
void allocate(Flow& flow);

}  // namespace gpukernel::simgpu::compiler
