"""Modules: names that are declared more than once, functions and their parameters, directives, initial values of vectors."""

from __future__ import annotations

import ctypes as c
from typing import Any

import pytest

ONE = ".func (.param .u32 r) f(.param .u32 x) { st.param.u32 [r], 1; ret; }\n"


@pytest.mark.parametrize(
    "module",
    [".global .u32 g; .global .u32 g;", ".global .u32 g; .shared .u32 g;", ".extern .global .u32 g; .visible .global .u64 g;", ".global .u32 f; .func f() { ret; }",
     ".func f() { ret; } .const .u32 f;", ".func f() { ret; } .func f() { ret; }", ".entry f() { ret; } .func f();", ".func f(); .func f(.param .u32 x) { ret; }",
     ".func f(.param .u32 x); .func f(.param .u64 x) { ret; }", ".func f(.param .u32 x); .func f(.reg .u32 x) { ret; }",
     ".func (.param .u32 r) f(); .func (.param .f32 r) f() { ret; }", ".extern .func f() { ret; }", ".func _() { ret; }"],
)  # fmt: skip
def test_a_name_means_one_thing(refusal: Any, module: str) -> None:
    assert "line " in refusal("", module)


def test_a_function_is_declared_before_it_is_defined(run: Any) -> None:
    body = ".param .u32 a; .param .u32 b; st.param.u32 [a], 0; call (b), f, (a); ld.param.u32 %r0, [b];"
    assert run(body, ".func (.param .u32 other) f(.param .u32 name);\n" + ONE) == [1] * 4


def test_a_variable_is_declared_before_it_is_defined(run: Any) -> None:
    assert (
        run("ld.global.u32 %r0, [g+4];", ".extern .global .u32 g[]; .visible .global .u32 g[2] = {5, 6};")
        == [6] * 4
    )


@pytest.mark.parametrize(
    "module",
    [".entry f(.param .b8 x[]) { ret; }", ".func (.param .b8 r[]) f() { ret; }", ".entry f(.param .v2 .u32 x) { ret; }", ".func f(.param .v2 .u32 x) { ret; }",
     ".func f(.reg .u32 x<2>) { ret; }", ".func f(.param .u64 .ptr .global .align 4 x) { ret; }", ".func f(.param .u32 _) { ret; }",
     ".func (.param .u32 r) f() .noreturn { ret; }", ".entry f() .noreturn { ret; }", ".entry f() .maxntid 0 { ret; }", ".entry f() .reqntid 8, 0 { ret; }",
     ".entry f() .maxntid 32 .reqntid 32 { ret; }", ".entry f() .maxnctapersm 2 { ret; }", ".func f() { ; ret; }", ".func f() { .reg .u32 _; ret; }",
     ".func f() { .reg .u32 WARP_SZ; ret; }", ".global .u32 .align 8 g;", ".global .u32 .v2 g;"],
)  # fmt: skip
def test_a_wrong_function_or_directive_is_refused(refusal: Any, module: str) -> None:
    assert "line " in refusal("", module)


@pytest.mark.parametrize(
    "module", [".entry f(.param .u32 _) { ret; }", ".func f(.param .b8 x[]) { ret; }", ".func f() .noreturn { exit; }", ".func f() { .reg .u32 x<0>; ret; }"]
)  # fmt: skip
def test_rare_forms_are_taken(run: Any, module: str) -> None:
    assert run("mov.u32 %r0, 3;", module) == [3] * 4


@pytest.mark.parametrize("value", ["{}", "{1}", "{1, 2, 3}", "1"])
def test_a_vector_is_initialised_whole(refusal: Any, value: str) -> None:
    assert "line " in refusal("", f".global .v2 .u32 g = {value};")


@pytest.mark.parametrize("value", ["{{1}, {2, 3}}", "{{}, {1, 2}}", "{1, 2}", "{1, 2, 3, 4}"])
def test_each_vector_of_an_array_is_initialised_whole(refusal: Any, value: str) -> None:
    assert "line " in refusal("", f".global .v2 .u32 g[2] = {value};")


def test_vectors_of_an_array_that_have_no_initial_value_are_zeros(run: Any) -> None:
    loads = "ld.global.v2.u32 {%r1, %r2}, [g]; ld.global.v2.u32 {%r3, %r4}, [g+8]; mad.lo.u32 %r0, %r1, 10, %r2; add.u32 %r0, %r0, %r3; add.u32 %r0, %r0, %r4;"
    assert run(loads, ".global .v2 .u32 g[2] = {{1, 2}}; .global .v2 .u32 h[2] = {};") == [12] * 4


@pytest.mark.parametrize("prototype", ["P", "nowhere"])
def test_a_call_by_name_has_no_prototype(refusal: Any, prototype: str) -> None:
    body = f"P: .callprototype (.param .u32 _) _ (.param .u32 _); call (%r0), f, (%i), {prototype};"
    assert "line " in refusal(body, ONE)


@pytest.mark.parametrize(
    "instruction",
    ["cvta.const.u64 %rd1, g;", "cvta.shared.u64 %rd1, g;", "cvta.global.u64 %rd1, c;", "prefetch.global.L1 [c];", "prefetch.L1 [nowhere];", "prefetch.const.L1 [c];",
     "prefetch.shared.L1 [%rd1];", "prefetch.global.L1 [%p1];"],
)  # fmt: skip
def test_a_variable_is_named_in_its_own_space(refusal: Any, instruction: str) -> None:
    assert "line " in refusal(instruction, ".global .u32 g; .const .u32 c;")


@pytest.mark.parametrize("weak_first", [True, False])
def test_a_function_that_is_not_weak_is_meant(device: Any, weak_first: bool) -> None:
    """Of two texts that are linked, whichever comes first."""
    head = ".version 8.0\n.target sm_90\n.address_size 64\n"
    weak, strong = (
        head + f"{kind} .func (.param .u32 r) f() {{ st.param.u32 [r], {n}; ret; }}\n"
        for kind, n in ((".weak", 1), (".visible", 2))
    )
    caller = (
        head
        + """.extern .func (.param .u32 r) f();
.visible .entry k(.param .u64 out) { .reg .u64 %rd; .reg .u32 %r; .param .u32 b; call (b), f; ld.param.u32 %r, [b]; ld.param.u64 %rd, [out]; st.global.u32 [%rd], %r; ret; }
"""
    )
    texts = [weak, strong] if weak_first else [strong, weak]
    assert _linked(device, [*texts, caller]) == 2


def _linked(device: Any, texts: list[str]) -> int:
    state, image, size, module, function, at = (
        c.c_void_p(),
        c.c_void_p(),
        c.c_size_t(),
        c.c_void_p(),
        c.c_void_p(),
        c.c_uint64(),
    )
    device._call("cuLinkCreate_v2", 0, None, None, c.byref(state))
    for text in texts:
        data = text.encode() + b"\0"
        device._call(
            "cuLinkAddData_v2", state, 1, c.c_char_p(data), c.c_size_t(len(data)), None, 0, None, None
        )  # CU_JIT_INPUT_PTX
    device._call("cuLinkComplete", state, c.byref(image), c.byref(size))
    device._call("cuModuleLoadData", c.byref(module), image)
    device._call("cuModuleGetFunction", c.byref(function), module, b"k")
    device._call("cuMemAlloc_v2", c.byref(at), c.c_size_t(4))
    arguments = (c.c_void_p * 1)(c.addressof(at))
    device._call("cuLaunchKernel", function, *[c.c_uint(1)] * 6, c.c_uint(0), None, arguments, None)
    found = c.c_uint32()
    device._call("cuMemcpyDtoH_v2", c.byref(found), at, c.c_size_t(4))
    device._call("cuLinkDestroy", state)
    return found.value
