// Writes x86-64 machine code: general registers, AVX-512 vectors and their masks, labels.  Once `narrow` has
// been called, vectors and masks are those of AVX2 (avx2/avx2.h), whoever names them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace gpukernel::simgpu::compiler {

enum Gpr : uint8_t { rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15 };
enum Condition : uint8_t {
    overflow = 0,
    below = 2,
    above_equal = 3,
    below_equal = 6,
    equal = 4,
    not_equal = 5,
    above = 7,
    negative = 8,
    less = 12,
    greater_equal = 13,
    less_equal = 14,
    greater = 15
};

struct Memory {
    Gpr base;
    int32_t displacement = 0;
    int index = -1;      // a vector of offsets
    uint8_t bytes = 64;  // what a vector instruction takes from there, which scales short displacements
    bool broadcast = false;
    int scaled = -1;    // a general register that counts places
    uint8_t shift = 0;  // of which each has 1 << shift bytes
};

// A place in the code that jumps name before or after it is known.
struct Label {
    int64_t at = -1;
    std::vector<size_t> from;
};

// A vector instruction: its prefix, opcode map, width of elements and opcode, as Intel's manual writes them.
struct Encoding {
    uint8_t prefix, map, wide, opcode;
};

class Avx2;

class Assembler {
  public:
    Assembler();
    ~Assembler();
    // `back`: what writes the same for AVX2.
    void narrow(std::unique_ptr<Avx2> back);
    bool is_narrow() const { return narrow_ != nullptr; }
    bool failed() const;          // it met an instruction that it does not know
    void only(uint32_t vectors);  // the others are not read any more
    const std::vector<uint8_t>& code() const { return code_; }
    size_t size() const { return code_.size(); }

    void bind(Label& label);
    void jump(Label& label);
    void jump(Condition condition, Label& label);
    void address(Gpr to, Label& label);  // lea to, [label]
    void jump_to(Gpr target);
    void call(Gpr target);
    void ret();
    void push(Gpr r);
    void pop(Gpr r);

    void move(Gpr to, Gpr from, bool wide = true) { rm(wide, 0x8b, to, from); }
    void load(Gpr to, Memory from, bool wide) { rm(wide, 0x8b, to, from); }
    void store(Memory to, Gpr from, bool wide) { rm(wide, 0x89, from, to); }
    void store(Memory to, int32_t value, bool wide);
    void load_sized(Gpr to, Memory from, int bytes, bool is_signed, bool wide);
    void immediate(Gpr to, uint64_t value);
    void prefetch(Memory m, bool stores) {  // a line of 64 bytes, wherever that is
        if (m.base >> 3) byte(0x41);
        byte(0x0f), byte(stores ? 0x0d : 0x18);
        operand(1, m, 1);
    }
    void place(Gpr to, Memory m) { rm(true, 0x8d, to, m); }  // lea: where it is, and not what is there
    enum Alu : uint8_t { add = 0, bit_or = 1, bit_and = 4, subtract = 5, bit_xor = 6, compare = 7 };
    void alu(Alu what, Gpr to, Gpr with, bool wide) {
        rm(wide, static_cast<uint8_t>(what * 8 + 3), to, with);
    }
    void alu(Alu what, Gpr to, Memory with, bool wide) {
        rm(wide, static_cast<uint8_t>(what * 8 + 3), to, with);
    }
    void alu(Alu what, Memory to, Gpr with, bool wide = false) {
        rm(wide, static_cast<uint8_t>(what * 8 + 1), with, to);
    }
    void alu(Alu what, Gpr to, int32_t value, bool wide);
    void alu(Alu what, Memory to, int32_t value);  // 32 bits
    void multiply(Gpr to, Memory with, bool wide);
    void multiply(Gpr to, Gpr with);  // 64 bits
    void multiply(Gpr to, Gpr from, int32_t value, bool wide);
    void shift_left(Gpr to, uint8_t bits, bool wide);
    void shift_right(Gpr to, uint8_t bits, bool wide);
    void sign_extend(Gpr to, Gpr from);  // 32 bits to 64
    void complement(Gpr r);
    void negate(Gpr r);
    void test(Gpr a, Gpr b, bool wide);
    void test(Gpr a, int32_t bits);
    void test(Memory a, int32_t bits);         // 32 bits
    void lowest_bit(Gpr to, Gpr from);         // the number of the lowest bit that is set (tzcnt)
    void leading_zeros(Gpr to, Gpr from);      // lzcnt
    void drop_lowest_bit(Gpr r);               // of rax to rdi (blsr)
    void all_ones_if_below(Gpr r, int32_t n);  // r = r < n ? ~0 : 0
    void move_if(Condition condition, Gpr to, Gpr from, bool wide);
    void store_narrow(Memory to, Gpr from, int bytes);  // from rax to rdx
    // Instructions that read, change and write memory, alone or (`locks`) seen whole by other threads.
    enum Exchange : uint8_t { compare_exchange = 0xb1, exchange_add = 0xc1 };
    void exchange(Exchange what, Memory with, Gpr r, bool wide, bool locks);
    void exchange(Memory with, Gpr r, bool wide) { rm(wide, 0x87, r, with); }
    void lock() { byte(0xf0); }
    void load_mode(Memory from);  // the rounding and flushing of floating-point numbers

    void mask_from(int k, Gpr from);
    void mask_from(int k, Memory from);
    void mask_to(Gpr to, int k);
    void mask_shift_right(int to, int from, uint8_t bits);
    void mask_unpack(int to, int high, int low, bool words);  // two of 8 bits, or of 16
    enum MaskOp : uint8_t { mask_and = 0x41, mask_or = 0x45 };
    void mask(MaskOp what, int to, int a, int b);

    // to = op(first, second); `k` is a mask whose lanes stay as they are, 0 none.  The length is 512 bits, or
    // 256 where `half`.
    void vector(Encoding i, int to, int first, int second, int k = 0, bool half = false);
    void vector(Encoding i, int to, int first, Memory second, int k = 0, bool half = false);
    void sixteen_bytes(bool stores, int reg, Memory m);  // vmovups of an xmm register
    void vector_from(int reg, Gpr from, bool wide);      // its first lane: vmovd, vmovq
    void vector_to(Gpr to, int reg, bool wide);
    void byte(uint8_t value) {
        if (awaits_) return complete(value);
        code_.push_back(value);
    }

  private:
    friend Avx2;
    std::vector<uint8_t> code_;
    std::unique_ptr<Avx2> narrow_;
    bool awaits_ = false;  // the last byte of a vector instruction
    void complete(uint8_t immediate);
    void jump_plainly(Condition condition, Label& label);
    void bind_plainly(Label& label);
    void word(uint32_t value);
    void operand(int reg, Memory m, int scale);
    void rm(bool wide, uint8_t opcode, int reg, Gpr rm);
    void rm(bool wide, uint8_t opcode, int reg, Memory m);
    void mask_prefix(uint8_t prefix, uint8_t map, bool wide, bool length, int second, bool extended);
    void reference(Label& label);
};

}  // namespace gpukernel::simgpu::compiler
