// The forms of instructions, as tables: which modifiers an instruction has, and what its operands are.
//
// A form's modifiers are groups with spaces between them: `a|b` one of several, a `?` behind it that it may
// be missing, `$name` a set that check.cpp lists, `T:` and `U:` a type that operands refer to.  An operand is
// `=X` where it is written and `X` where it is read: a type (`u32`), `T`, `2T` twice as wide; `p` a predicate
// that may be negated with `!`; `@` an address; `i` a constant; `l` a name; `~T` a register that is at least
// as wide; `%T` a special register, too; `=T|p` a pair; `T*` a vector where the modifiers name one; `mov`
// what mov moves; `where` an address in a register, `name` that or a variable; `any`.  A `?` behind it: may
// be missing; `...`: the decoder knows more.
#pragma once

#include <span>

namespace gpukernel::simgpu::ptx {

struct Form {
    const char* name;
    const char* modifiers;
    const char* operands;
};
std::span<const Form> integer_forms();   // and logic, comparison, selection
std::span<const Form> floating_forms();  // and conversion
std::span<const Form> memory_forms();
std::span<const Form> control_forms();  // and exchange between threads
std::span<const Form> special_forms();  // textures, matrices, video, copies that go on by themselves

}  // namespace gpukernel::simgpu::ptx
