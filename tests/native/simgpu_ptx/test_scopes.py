"""Every kind of name belongs to the block in which it is declared (PTX ISA 4.4, 5.4)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.native.simgpu_ptx.conftest import line_of


def test_two_blocks_have_labels_of_the_same_name(run: Any) -> None:
    """As two inline-assembly statements of one source have them."""
    block = "{{ .reg .pred p; setp.ge.u32 p, %i, {0}; @p bra DONE; add.u32 %r0, %r0, {1}; DONE: }}"
    assert run(block.format(1, 1) + "\n" + block.format(3, 10)) == [11, 10, 10, 0]


def test_a_loop_in_a_block_goes_back_to_its_own_label(run: Any) -> None:
    loop = "{ .reg .pred p; .reg .u32 n; mov.u32 n, 3; L: add.u32 %r0, %r0, 1; sub.u32 n, n, 1; setp.ne.u32 p, n, 0; @p bra L; }"
    assert run(loop + loop) == [6] * 4


def test_an_inner_label_hides_the_outer_of_its_name(run: Any) -> None:
    body = """setp.eq.u32 %p0, %r0, 5; @%p0 bra L;
    { bra L; add.u32 %r0, %r0, 100; L: add.u32 %r0, %r0, 1; }
    bra L; add.u32 %r0, %r0, 1000;
    L: add.u32 %r0, %r0, 10;"""
    assert run(body) == [11] * 4


def test_a_jump_leaves_inner_blocks_for_an_outer_label(run: Any) -> None:
    assert (
        run("{ { add.u32 %r0, %r0, 1; bra OUT; } add.u32 %r0, %r0, 100; } OUT: add.u32 %r0, %r0, 2;")
        == [3] * 4
    )


def test_a_block_in_between_has_the_label(run: Any) -> None:
    body = "{ { { bra M; } add.u32 %r0, %r0, 100; } M: add.u32 %r0, %r0, 1; } M: add.u32 %r0, %r0, 10;"
    assert run(body) == [11] * 4


def test_nobody_jumps_into_a_block(refusal: Any) -> None:
    body = "bra IN; { IN: add.u32 %r0, %r0, 1; }"
    said = refusal(body)
    assert "no label named IN" in said
    assert f"line {line_of(body)}:" in said


@pytest.mark.parametrize(
    "declaration",
    [
        "{ X: X: }", ".reg .u32 x; .reg .u32 x;", ".reg .u32 x<3>; .reg .u32 x1;", ".reg .u32 x; x: bra x;",
        ".reg .u32 x1; .reg .u32 x<3>;", ".global .u32 x; .global .u32 x;", ".shared .u32 x; .local .u32 x;",
        "X: .branchtargets A; X: A:",
    ],
)  # fmt: skip
def test_a_name_is_declared_once_in_a_block(refusal: Any, declaration: str) -> None:
    assert "declared twice in one block" in refusal(declaration)


def test_registers_are_local_to_their_block(run: Any) -> None:
    body = """.reg .u32 x; mov.u32 x, 1;
    { .reg .u32 x; mov.u32 x, 20; { .reg .u32 x; mov.u32 x, 300; add.u32 %r0, %r0, x; } add.u32 %r0, %r0, x; }
    add.u32 %r0, %r0, x;"""
    assert run(body) == [321] * 4


def test_a_register_is_the_outer_one_until_the_inner_is_declared(run: Any) -> None:
    assert (
        run(
            ".reg .u32 x; mov.u32 x, 1; { add.u32 %r0, %r0, x; .reg .u32 x; mov.u32 x, 9; } add.u32 %r0, %r0, x;"
        )
        == [2] * 4
    )


def test_an_inner_register_has_another_type(run: Any) -> None:
    body = ".reg .u32 x; mov.u32 x, 1; { .reg .f32 x; mov.f32 x, 2.0; cvt.rzi.u32.f32 %r0, x; } add.u32 %r0, %r0, x;"
    assert run(body) == [3] * 4


def test_ranges_of_registers_are_local_too(run: Any) -> None:
    assert (
        run(
            ".reg .u32 x<4>; mov.u32 x1, 1; { .reg .u32 x<2>; mov.u32 x1, 7; mov.u32 x3, 30; } add.u32 %r0, x1, x3;"
        )
        == [31] * 4
    )


def test_a_register_of_a_block_that_ended_is_unknown(refusal: Any) -> None:
    assert "'x' is no register" in refusal("{ .reg .u32 x; } add.u32 %r0, %r0, x;")


@pytest.mark.parametrize("space", ["shared", "local", "global"])
def test_variables_are_local_to_their_block(run: Any, space: str) -> None:
    body = f"""{{ .{space} .u32 v; mov.u32 %r1, 1; st.{space}.u32 [v], %r1;
      {{ .{space} .u32 v; mov.u32 %r1, 20; st.{space}.u32 [v], %r1; ld.{space}.u32 %r2, [v]; }}
      ld.{space}.u32 %r3, [v]; }}
    {{ .{space} .u32 v; mov.u32 %r1, 300; st.{space}.u32 [v], %r1; ld.{space}.u32 %r4, [v]; }}
    add.u32 %r0, %r2, %r3; add.u32 %r0, %r0, %r4;"""
    assert run(body) == [321] * 4


def test_constants_and_globals_of_blocks_keep_their_values(run: Any) -> None:
    body = """{ .const .u32 v[2] = {1, 2}; ld.const.u32 %r1, [v+4]; } { .const .u32 v = 30; ld.const.u32 %r2, [v]; }
    { .global .u32 v = 400; ld.global.u32 %r3, [v]; } ld.global.u32 %r4, [v];
    add.u32 %r0, %r1, %r2; add.u32 %r0, %r0, %r3; add.u32 %r0, %r0, %r4;"""
    assert run(body, module=".global .u32 v = 5000;") == [5432] * 4


def test_a_blocks_variable_is_named_in_its_initialisers(run: Any) -> None:
    body = """{ .global .u32 v[2] = {7, 8}; .global .u64 p = v+4; ld.global.u64 %rd1, [p]; ld.global.u32 %r0, [%rd1]; }"""
    assert run(body, module=".global .u32 v = 5000;") == [8] * 4


def test_parameters_of_calls_are_local_to_their_block(run: Any) -> None:
    module = """.func (.param .u32 r) twice(.param .u32 x)
{ .reg .u32 %a; ld.param.u32 %a, [x]; add.u32 %a, %a, %a; st.param.u32 [r], %a; ret; }"""
    call = "{{ .param .u32 a; .param .u32 b; st.param.u32 [a], {0}; call (b), twice, (a); ld.param.u32 %r1, [b]; add.u32 %r0, %r0, %r1; }}"
    assert run(call.format("%i") + call.format(50), module) == [100, 102, 104, 106]


def test_lists_of_targets_are_local_to_their_block(run: Any) -> None:
    body = """T: .branchtargets A, B;
    { T: .branchtargets B, A; .reg .u32 one; and.b32 one, %i, 1; brx.idx one, T; A: add.u32 %r0, %r0, 1; bra END; B: add.u32 %r0, %r0, 2; END: }
    and.b32 %r1, %i, 1; brx.idx %r1, T;
    A: add.u32 %r0, %r0, 10; bra END; B: add.u32 %r0, %r0, 20; END:"""
    assert run(body) == [12, 21, 12, 21]


def test_the_names_of_a_list_mean_what_they_mean_where_it_stands(run: Any) -> None:
    body = """T: .branchtargets A, B;
    and.b32 %r1, %i, 1;
    { brx.idx %r1, T; A: add.u32 %r0, %r0, 100; B: add.u32 %r0, %r0, 100; }
    A: add.u32 %r0, %r0, 1; B: add.u32 %r0, %r0, 10;"""
    assert run(body) == [11, 10, 11, 10]


def test_prototypes_are_local_to_their_block(run: Any) -> None:
    module = """.func (.param .u32 r) one(.param .u32 x) { .reg .u32 %a; ld.param.u32 %a, [x]; add.u32 %a, %a, 1; st.param.u32 [r], %a; ret; }
.func (.param .u64 r) wide(.param .u64 x) { .reg .u64 %a; ld.param.u64 %a, [x]; add.u64 %a, %a, 10; st.param.u64 [r], %a; ret; }"""
    body = """{ P: .callprototype (.param .u32 _) _ (.param .u32 _); .param .u32 a; .param .u32 b; st.param.u32 [a], %i;
      mov.u64 %rd1, one; call (b), %rd1, (a), P; ld.param.u32 %r0, [b]; }
    { P: .callprototype (.param .u64 _) _ (.param .u64 _); .param .u64 a; .param .u64 b; cvt.u64.u32 %rd2, %r0; st.param.u64 [a], %rd2;
      mov.u64 %rd1, wide; call (b), %rd1, (a), P; ld.param.u64 %rd2, [b]; cvt.u32.u64 %r0, %rd2; }"""
    assert run(body, module) == [11, 12, 13, 14]


def test_two_functions_have_the_same_names(run: Any) -> None:
    def function(name: str, n: int) -> str:
        return f""".func (.param .u32 r) {name}(.param .u32 x) {{ .reg .u32 v; .global .u32 g = {n}; ld.global.u32 v, [g];
{{ bra L; L: add.u32 v, v, 1; }} st.param.u32 [r], v; ret; }}"""

    body = """.param .u32 a; .param .u32 b; st.param.u32 [a], 0; call (b), f, (a); ld.param.u32 %r1, [b];
    call (b), g, (a); ld.param.u32 %r2, [b]; add.u32 %r0, %r1, %r2;"""
    assert run(body, function("f", 100) + "\n" + function("g", 2000)) == [2102] * 4


def test_registers_outside_of_functions_are_refused(refusal: Any) -> None:
    assert "stand in a function" in refusal("", module=".reg .u32 x;")
