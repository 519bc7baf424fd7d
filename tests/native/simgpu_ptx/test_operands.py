"""Operands: constant expressions, sums with registers, elements of arrays; and nothing that is not understood."""

from __future__ import annotations

from typing import Any

import pytest

from tests.native.simgpu_ptx.conftest import line_of

ARRAY = ".global .u32 a[6] = {10, 11, 12, 13, 14, 15};\n"


@pytest.mark.parametrize(
    ("operand", "expected"),
    [
        ("%i+5", [5, 6, 7, 8]), ("%i+-1", [2**32 - 1, 0, 1, 2]), ("%i+(2*3)", [6, 7, 8, 9]), ("%i+1<<2", [4, 5, 6, 7]),
        ("(1+2)*3", [9] * 4), ("1+2*3", [7] * 4), ("10-2-3", [5] * 4), ("~5", [2**32 - 6] * 4), ("!5", [0] * 4), ("!0", [1] * 4),
        ("-(3)", [2**32 - 3] * 4), ("1<<4", [16] * 4), ("0x80>>3|1", [17] * 4), ("7 % 4", [3] * 4), ("7/2", [3] * 4),
        ("1?2:3", [2] * 4), ("0?2:0?3:4", [4] * 4), ("1<2", [1] * 4), ("2<=1", [0] * 4), ("3==3&&4!=4", [0] * 4),
        ("3==3||4!=4", [1] * 4), ("-1>0", [0] * 4), ("-1>0U", [1] * 4), ("(.u64)-1>0", [1] * 4), ("6&3^1", [3] * 4),
        ("0b101", [5] * 4), ("017", [15] * 4), ("0xFFFFFFFFU", [2**32 - 1] * 4), ("WARP_SZ", [32] * 4), ("WARP_SZ-1", [31] * 4),
        ("089", None), ("0b12", None), ("5u", None), ("1+", None), ("(1", None), ("1/0", None), ("5q", None), ("%i-1", None),
        ("%i+%i", None), ("%i+1.0", None), ("%tid.x+1", None), ("99999999999999999999999", None), ("0f3F80", None), ("--", None),
    ],
)  # fmt: skip
def test_what_an_operand_is(run: Any, refusal: Any, operand: str, expected: list[int] | None) -> None:
    if expected is not None:
        assert run(f"mov.u32 %r0, {operand};") == expected
    else:
        assert "line " in refusal(f"mov.u32 %r0, {operand};")


def test_a_number_is_added_to_any_register_that_is_read(run: Any) -> None:
    body = """.shared .u32 s[4]; setp.eq.u32 %p1, %i+1, 2; selp.u32 %r0, %i+100, %i+200, %p1; st.shared.u32 [s], %r0+1; ld.shared.u32 %r0, [s];
    cvt.u64.u32 %rd1, %r0+1; mov.b64 {%r0, _}, %rd1+1; shl.b32 %r0, %r0+1, 1;"""
    assert run(body, threads=1) == [2 * (200 + 4)]


def test_a_hexadecimal_floating_point_number_is_bits_of_its_width(run: Any) -> None:
    body = "mov.b32 %r1, 0f40000000; and.b32 %r1, %r1, 0f7F800000; mov.b64 %rd1, 0d3FF0000000000000; mov.b64 {_, %r2}, %rd1; sub.u32 %r0, %r1, %r2;"
    assert run(body) == [0x40000000 - 0x3FF00000] * 4


def test_a_number_is_added_to_an_address_of_a_variable(run: Any) -> None:
    assert (
        run(
            "mov.u64 %rd1, a+4; ld.global.u32 %r0, [%rd1+2*4]; ld.global.u32 %r1, [a+8-4]; add.u32 %r0, %r0, %r1;",
            ARRAY,
        )
        == [24] * 4
    )


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ("mov.u64 %rd1, a[0]; ld.global.u32 %r0, [%rd1];", [10] * 4),
        ("mov.u64 %rd1, a[2]; ld.global.u32 %r0, [%rd1];", [12] * 4),
        ("mov.u64 %rd1, a[%i]; ld.global.u32 %r0, [%rd1];", [10, 11, 12, 13]),
        ("cvta.global.u64 %rd1, a[1]; ld.u32 %r0, [%rd1];", [11] * 4),
        ("ld.global.u32 %r0, a[3];", [13] * 4),
        ("ld.global.u32 %r0, a[%i];", [10, 11, 12, 13]),
        ("ld.global.u32 %r0, a[%i+2];", [12, 13, 14, 15]),
        ("cvt.u64.u32 %rd1, %i; ld.global.u32 %r0, a[%rd1];", [10, 11, 12, 13]),
        ("ld.global.u32 %r0, rows[1];", [21] * 4),
        ("ld.u32 %r0, a[WARP_SZ-31];", [11] * 4),
        (".shared .u32 s[4]; st.shared.u32 s[%i], %i+7; ld.shared.u32 %r0, s[%i]; mov.u32 %r1, s[2]; mov.u32 %r2, s; sub.u32 %r1, %r1, %r2;"
         " add.u32 %r0, %r0, %r1;", [15, 16, 17, 18]),
        (".local .u16 s[4]; .reg .u16 h; mov.u16 h, 9; st.local.u16 s[3], h; ld.local.u16 %r0, [s+6];", [9] * 4),
        ("mov.u32 %r1, 0x40000001; ld.global.u32 %r0, a[%r1];", [11] * 4),  # the index counts in 32 bits, as ptxas has it
    ],
)  # fmt: skip
def test_elements_of_arrays(run: Any, load: str, expected: list[int]) -> None:
    assert run(load, ARRAY + ".global .u32 rows[2][3] = {{20, 21, 22}, {23, 24, 25}};") == expected


def test_a_table_of_functions_is_indexed_by_a_register(run: Any) -> None:
    functions = "".join(
        f".func (.param .u32 r) f{n}(.param .u32 x) {{ st.param.u32 [r], {10 * n + 1}; ret; }}\n"
        for n in range(4)
    )
    module = functions + ".global .u64 callables[4] = {f0, f1, f2, f3};"
    body = """P: .callprototype (.param .u32 _) _ (.param .u32 _); .param .u32 a; .param .u32 b; st.param.u32 [a], 0;
    ld.global.u64 %rd1, callables[%i]; call (b), %rd1, (a), P; ld.param.u32 %r0, [b];"""
    assert run(body, module) == [1, 11, 21, 31]


CARRY = {
    "sub.cc.u32 %r1, 5, 3; addc.u32 %r0, 0, 0;": 1,
    "sub.cc.u32 %r1, 3, 5; addc.u32 %r0, 0, 0;": 0,
    "sub.cc.u32 %r1, 3, 5; subc.u32 %r0, 0, 0;": 2**32 - 1,
    "sub.cc.u32 %r1, 5, 5; subc.u32 %r0, 9, 2;": 7,
    "add.cc.u32 %r1, 0, 0; subc.u32 %r0, 0, 0;": 2**32 - 1,
    "add.cc.u32 %r1, -1, 1; subc.u32 %r0, 9, 2;": 7,
    "add.cc.u32 %r1, -1, 1; addc.u32 %r0, 1, 1;": 3,
    "sub.cc.u32 %r1, 5, 3; subc.cc.u32 %r1, 0, 0; addc.u32 %r0, 0, 0;": 1,
    "sub.cc.u64 %rd1, 5, 7; addc.u32 %r0, 0, 0;": 0,
    "sub.cc.u32 %r1, 5, 3; madc.lo.u32 %r0, 2, 3, 4;": 11,
}


@pytest.mark.parametrize("body", CARRY)
def test_a_subtraction_leaves_the_adders_carry(run: Any, body: str) -> None:
    """The code that ptxas makes for sm_70 to sm_90 tests one flag, whichever of both sets and reads it."""
    assert run(body) == [CARRY[body]] * 4


NOT_UNDERSTOOD = {
    "missing comma": "add.u32 %r1 %r2, %r3;",
    "one operand too many": "add.u32 %r1, %r2, %r3, %r4;",
    "one too few": "add.u32 %r1, %r2;",
    "a comma at the end": "add.u32 %r1, %r2, %r3,;",
    "no semicolon": "add.u32 %r1, %r2, %r3",
    "unknown modifier": "add.foo.u32 %r1, %r2, %r3;",
    "modifier of another": "add.wide.u32 %r1, %r2, %r3;",
    "modifier twice": "add.rn.rn.f32 %f1, %f2, %f3;",
    "type twice": "add.u32.u32 %r1, %r2, %r3;",
    "no type": "add %r1, %r2, %r3;",
    "wrong type": "and.u32 %r1, %r2, %r3;",
    "wrong register": "add.u32 %r1, %f2, %r3;",
    "wrong width": "add.u64 %rd1, %rd2, %r3;",
    "wrong result": "add.u32 %f1, %r2, %r3;",
    "constant of another kind": "add.u32 %r1, %r2, 1.0;",
    "integer for a float": "add.f32 %f1, %f2, 1;",
    "integer for two halves": ".reg .b32 %x; add.f16x2 %x, %x, 1;",
    "integer for two halves that are compared": ".reg .b32 %x; setp.ge.bf16x2 %p1|%p2, -1, %x;",
    "negated register": "add.s32 %r1, %r2, -%r3;",
    "complement of a register": "add.u32 %r1, %r2, !%r3;",
    "part of a register": "add.u32 %r1, %r2.b0, %r3;",
    "special register": "add.u32 %r1, %tid.x, 1;",
    "unknown special register": "mov.u32 %r1, %foo;",
    "unknown register": "add.u32 %r1, %r2, %r99;",
    "unknown variable": "ld.global.u32 %r1, [nowhere];",
    "unknown function": "call nowhere;",
    "address for a value": "add.u32 %r1, %r2, [%rd1];",
    "value for an address": "ld.global.u32 %r1, %rd1;",
    "variable in another space": ".shared .u32 s; ld.global.u32 %r1, [s];",
    "address in two registers": "ld.global.u32 %r1, [%rd1+%rd2];",
    "float as address": "ld.global.u32 %r1, [%f1];",
    "missing bracket": "ld.global.u32 %r1, [%rd1;",
    "missing element": "ld.global.v2.u32 {%r1,}, [%rd1];",
    "comma between elements": "ld.global.v2.u32 {%r1 %r2}, [%rd1];",
    "vector of another length": "ld.global.v4.u32 {%r1, %r2}, [%rd1];",
    "scalar for a vector": "ld.global.v2.u32 %r1, [%rd1];",
    "discarded result": "add.u32 _, %r2, %r3;",
    "constant result": "add.u32 1, %r2, %r3;",
    "comparison of another type": "setp.hi.s32 %p1, %r1, %r2;",
    "register as predicate": "@%r1 add.u32 %r1, %r2, %r3;",
    "predicate as number": "add.u32 %r1, %r2, %p1;",
    "label as number": "L: mov.u64 %rd1, L;",
    "label plus one": "bra L+1; L:",
    "unknown label": "bra nowhere;",
    "unknown list": "brx.idx %r1, nowhere;",
    "cache policy without its modifier": "ld.global.u32 %r1, [%rd1], %rd2;",
    "two spaces": "ld.global.shared.u32 %r1, [%rd1];",
    "scope without an order": "ld.gpu.global.u32 %r1, [%rd1];",
    "unknown directive": ".foo 5;",
    "comment without an end": "/* comment",
    "copy to global": "cp.async.ca.global.shared [%rd1], [%rd2], 4;",
}


@pytest.mark.parametrize("what", NOT_UNDERSTOOD)
def test_what_is_not_understood_is_an_error_with_its_line(refusal: Any, what: str) -> None:
    said = refusal(NOT_UNDERSTOOD[what])
    first = line_of(NOT_UNDERSTOOD[what])
    if what in ("no semicolon", "missing bracket", "comment without an end"):
        assert "line " in said  # where the next thing stands
    else:
        assert f"line {first}:" in said


def test_a_modifier_may_stand_in_any_order(run: Any) -> None:
    """As ptxas takes it."""
    assert (
        run(
            "mov.f32 %f1, 1.0; add.sat.f32.rn %f1, %f1, 0.5; cvt.u32.rzi.f32 %r0, %f1; prmt.rc8.b32 %r0, %r0, 2, 0; and.b32 %r0, %r0, 255; atom.add.global.u32 %r1, [g], 1;",
            ".global .u32 g;",
        )
        == [1] * 4
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("cvt.u64.u32 %rd1, %tid.x; cvt.u32.u64 %r0, %rd1;", [0, 1, 2, 3]),
        ("cvt.u32.u16 %r0, %tid.x;", [0, 1, 2, 3]),
        ("cvt.u32.u8 %r0, %laneid;", [0, 1, 2, 3]),
        ("cvt.u32.u64 %r1, %clock64; mov.u32 %r0, 0;", [0] * 4),
        ("cvt.u64.u64 %rd1, %tid.x;", None), ("cvt.rn.f32.u32 %f1, %tid.x;", None), ("setp.eq.u32 %p1, %tid.x, 0;", None),
    ],
)  # fmt: skip
def test_conversions_of_integers_read_special_registers(
    run: Any, refusal: Any, body: str, expected: list[int] | None
) -> None:
    if expected is not None:
        assert run(body) == expected
    else:
        assert "operand 2" in refusal(body)
