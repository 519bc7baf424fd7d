// The decoder of one function.  Its members are grouped by subject in the files of this folder; this header
// is what they share: operands become slots, slots are offsets into a warp's registers or into the table of
// constants.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "simgpu/exec/matrix.h"
#include "simgpu/ptx/decode.h"

namespace gpukernel::simgpu::ptx {

constexpr uint8_t kClobbers = 0xff;  // Op::pattern, until stretches(): writes more registers than Op::dst
constexpr uint32_t kSink = 0xfffffffeu;
inline uint32_t round_up(uint32_t n, uint32_t to) { return (n + to - 1) / to * to; }
bool is_float(Type t);
bool is_signed(Type t);
inline std::string bits(uint32_t bytes) { return std::to_string(bytes * 8); }

class Decoder {
  public:
    Decoder(const FunctionTree& tree, const Symbols& symbols, Function& out, uint32_t& shared_at);
    void run();

  private:
    const FunctionTree& tree_;
    Instruction entry_;  // where a function begins, for the operations that belong to no instruction
    const Symbols& symbols_;
    Function& out_;
    uint32_t& shared_at_;
    std::vector<uint64_t> slot_;
    std::vector<bool> placed_;
    std::map<uint32_t, uint32_t> mentions_;  // of a register in the text, by its slot
    std::set<int> is_param_;
    uint32_t registers_ = 0, carry_ = 0;
    std::map<std::pair<uint32_t, uint64_t>, uint32_t> constants_;
    std::map<uint32_t, uint32_t> code_at_;             // of an instruction that a label names
    std::vector<std::pair<size_t, uint32_t>> fixups_;  // a branch, and the instruction that it goes to
    std::vector<std::vector<uint32_t>> table_fixups_;  // the same of each table
    mutable uint64_t read_ = 0;                        // operands of this instruction that anybody asked for
    const Instruction* here_ = nullptr;
    uint32_t mode_ = 0;
    uint32_t stack_top_ = 0, stack_begin_ = 0;  // where alloca is used

    // operands.cpp: registers, constants, addresses of variables.
    [[noreturn]] void lacking(const std::string& why = "") const;
    [[noreturn]] void wrong(const std::string& why) const;
    uint32_t label(const std::string& name, uint32_t block) const;
    uint32_t label(const Operand& o) const;
    void everything_was_read() const;
    uint32_t reserve(uint32_t bytes);
    uint32_t temp(uint32_t element) {
        return reserve(element == 0 ? 4 : element * kLanes);
    }  // 0: a predicate
    const Variable& variable(const Operand& o) const { return tree_.variables[static_cast<size_t>(o.var)]; }
    uint32_t register_slot(int var);
    uint32_t width(const Operand& o) const;
    uint64_t place(int var);  // where a function's own variable lies: an offset in its space
    uint32_t constant(uint32_t bytes, uint64_t value);  // 0 bytes: a predicate
    uint64_t immediate(const Operand& o, Type type) const;
    uint32_t source(const Operand& o, Type type, uint32_t bytes = ~0u);  // a slot of `bytes` (0: a predicate)
    uint32_t fit(uint32_t slot, uint32_t from, uint32_t to, bool extend_sign);
    uint32_t address_of(const Operand& o, uint32_t bytes);  // of a variable in its own space
    uint32_t element_of(const Operand& o, uint32_t bytes);  // of an element of an array
    uint32_t element_size(const Operand& o) const;
    uint32_t plus(uint32_t slot, int64_t addend, uint32_t bytes);
    uint32_t destination(const Operand& o, uint32_t bytes);
    const Operand& operand(size_t n) const;
    bool has(std::string_view part) const;
    std::vector<Type> types() const;
    Type type() const;

    // operands.cpp: operations.
    Op fresh(bool guarded = true);
    Handler handler(const std::string& key) const;
    void emit(const std::string& key, Op op);
    // Operations that only prepare operands run for every lane: cheaper, and harmless.
    void prepare(const std::string& key, uint32_t dst, uint32_t a, int64_t imm = 0, uint32_t b = 0);
    bool special(const std::string& name, int& which) const;
    // The processor's rounding and flushing for what follows.
    uint32_t wanted_mode() const;
    void set_mode(uint32_t wanted);
    void mark_whole(size_t first);
    void stretches();  // what may run without looking between, and what is known there
    void row(Op* first, size_t count);

    // One file a subject.
    void instruction(const Instruction& in);
    void arithmetic();
    void set_predicate(bool to_register);
    void lop3_predicate(Op op);
    void compare_halves(const std::string& compare, const std::string& combine, bool to_register);
    void finish(uint32_t slot, Type type);
    void convert();
    uint32_t rectified(uint32_t slot, Type type);
    void pack();
    void move();
    void load_store(bool load);
    void same_space(const Operand& address, bool writes) const;
    void atomic();
    bool in_shared() const { return has("shared") || has("shared::cta") || has("shared::cluster"); }
    uint32_t generic_address(const Operand& address);
    void copy_async();
    void mbarrier();
    uint32_t address_in(const Operand& address, bool shared);
    void copy_bulk();
    void cache_policy();
    void transaction(size_t barrier, uint32_t bytes);
    void barrier_object(const std::string& what, const Operand* result, const Operand& address,
                        uint32_t value);
    void stack();
    bool grows_stack() const;
    void video();
    void texture();
    void texture_query();
    void surface();
    uint32_t texture_place(const Operand& address, TexturePlan& plan, Type coordinate);
    std::vector<uint32_t> gradient(const Operand& o, size_t n);
    void emit_texture(const std::string& key, Op op, const TexturePlan& plan);
    void matrix();
    void multiply(const std::vector<Element>& elements, uint32_t m, uint32_t n, uint32_t k);
    void matrix_memory(bool load, Element element, uint32_t m, uint32_t n, uint32_t k);
    void matrix_rows(bool load);
    void fragment(const Operand& o, Element element, uint32_t count, bool destinations, Fragment& to);
    void emit_matrix(const std::string& key, Op op, MatrixPlan plan);
    void warpgroup();
    void multiply_by_warpgroup();
    void emit_warpgroup(const std::string& key, Op op, WarpgroupPlan plan);
    void copy_tensor();
    void tensor_map();
    uint32_t tensor_place(const Operand& place, Op& op);
    void address_conversion();
    void control(const std::string& base);
    void barrier();
    void warp(const std::string& base);
    void call();
    // Parameters that are registers travel in the frames of caller and callee.
    void pass(bool load, uint64_t offset, uint32_t slot, Type type, bool guarded);
    void pass_register(bool load, uint64_t offset, const Operand& o);
    void take_parameters();
    void give_results();
    void own_parameters(bool load, const std::vector<int>& which, const std::vector<Slot>& places);
    uint32_t passed(const Operand& o, const Variable& formal, bool result);
    Space space_of(Op& op, const Operand& address);
};

}  // namespace gpukernel::simgpu::ptx
