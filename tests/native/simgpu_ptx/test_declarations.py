"""Declarations: vectors in registers, initial values, parameters, shared memory of another text (PTX ISA 5)."""

from __future__ import annotations

import ctypes as c
from typing import Any

import numpy as np
import pytest


def test_elements_of_vectors_are_different_registers(run: Any) -> None:
    body = """.reg .v4 .u32 v; mov.u32 v.x, 1; mov.u32 v.y, 20; mov.u32 v.z, 300; mov.u32 v.w, 4000;
    sub.u32 %r0, v.w, v.x; add.u32 %r0, %r0, v.y; add.u32 %r0, %r0, v.z;"""
    assert run(body) == [4319] * 4


def test_elements_have_the_names_of_colours_too(run: Any) -> None:
    body = ".reg .v4 .u32 v; mov.u32 v.x, 1; mov.u32 v.y, 2; mov.u32 v.z, 3; mov.u32 v.w, 4; mad.lo.u32 %r0, v.a, 10, v.b; mad.lo.u32 %r0, v.g, %r0, v.r;"
    assert run(body) == [2 * 43 + 1] * 4


def test_vectors_are_loaded_and_stored_whole(run: Any) -> None:
    body = """.reg .v4 .u32 v; .reg .v2 .u32 w; .shared .align 16 .u32 s[8];
    ld.global.v4.u32 v, [g]; mov.u32 w.x, v.w; mov.u32 w.y, v.z; st.shared.v2.u32 [s+8], w; ld.shared.v2.u32 {%r1, %r2}, [s+8];
    mad.lo.u32 %r0, %r1, 100, %r2;"""
    assert run(body, module=".global .align 16 .u32 g[4] = {5, 6, 7, 8};") == [807] * 4


def test_vectors_are_packed_and_unpacked(run: Any) -> None:
    body = """.reg .v2 .u32 v; .reg .v4 .b16 h; mov.b64 v, 0x0000000500000007; mov.u32 %r1, v.y; mov.u32 %r2, v.x;
    mov.b64 %rd1, v; mov.b64 h, %rd1; mov.b64 {%r3, %r4}, %rd1; .reg .b16 t; mov.b16 t, h.z; cvt.u32.u16 %r5, t;
    mad.lo.u32 %r0, %r1, 10, %r2; mad.lo.u32 %r0, %r0, 10, %r4; mad.lo.u32 %r0, %r0, 10, %r5;"""
    assert run(body) == [5755] * 4


def test_vectors_are_moved(run: Any) -> None:
    body = """.reg .v4 .u32 v, w; mov.v4.u32 v, {1, 2, 3, %i}; mov.v4.u32 w, v; mov.v2.u32 {%r1, %r2}, {w.w, w.y};
    mov.v2.u32 {%r1, %r2}, {%r2, %r1}; mov.v4.u32 {_, _, %r3, _}, w; mad.lo.u32 %r0, %r1, 100, %r2; mad.lo.u32 %r0, %r3, 1000, %r0;"""
    assert run(body) == [3200, 3201, 3202, 3203]


def test_a_run_of_vectors(run: Any) -> None:
    body = ".reg .v2 .u32 v<3>; mov.u32 v0.x, 1; mov.u32 v2.x, 5; mov.u32 v2.y, 7; mad.lo.u32 %r0, v2.y, 10, v2.x; add.u32 %r0, %r0, v0.x;"
    assert run(body) == [76] * 4


@pytest.mark.parametrize(
    "body",
    [".reg .v2 .u32 v; mov.u32 %r0, v.z;", ".reg .v4 .b64 v;", ".reg .v2 .pred v;", ".reg .v4 .u32 v; add.u32 %r0, v, v;",
     ".reg .v4 .u32 v; ld.global.v2.u32 v, [%rd1];", ".reg .v3 .u32 v;", ".reg .u32 x[4];", "mov.f32 %f1, %f2.x;"],
)  # fmt: skip
def test_what_is_no_vector_is_refused(refusal: Any, body: str) -> None:
    assert "line " in refusal(body)


def test_a_functions_own_global_has_its_initial_value(run: Any) -> None:
    body = ".global .u32 g[3] = {5, 6, 7}; .const .f32 h = 2.5; ld.global.u32 %r0, [g+8]; ld.const.f32 %f1, [h]; cvt.rzi.u32.f32 %r1, %f1; add.u32 %r0, %r0, %r1;"
    assert run(body) == [9] * 4


def test_a_functions_own_global_is_no_name_of_the_module(device: Any) -> None:
    ptx = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { .global .u32 g = 5; ret; }"
    module, at, size = c.c_void_p(), c.c_uint64(), c.c_size_t()
    device._call("cuModuleLoadData", c.byref(module), c.c_char_p(ptx.encode()))
    assert device._cuda.cuModuleGetGlobal_v2(c.byref(at), c.byref(size), module, b"g") == 500  # not found


def test_rows_of_an_initialiser_that_are_not_full_end_in_zeros(run: Any) -> None:
    module = ".global .u32 g[3][2] = {{1}, {2, 3}}; .global .v2 .u32 v[2] = {{4, 5}, {6, 7}}; .global .u32 open[] = {8, 9};"
    loads = "".join(
        f"ld.global.u32 %r1, [{place}]; mad.lo.u32 %r0, %r0, 10, %r1; "
        for place in ["g", "g+4", "g+8", "g+12", "g+16", "v+4", "v+8", "open+4"]
    )
    assert run(loads, module) == [10230569] * 4


def test_numbers_of_either_precision_initialise_either(run: Any) -> None:
    module = (
        ".global .f32 g[3] = {0f3f800000, 0d4000000000000000, -4.0}; .global .f64 h[2] = {0f3f000000, 1.5};"
    )
    body = """.reg .f64 %d<3>; ld.global.f32 %f1, [g]; ld.global.f32 %f2, [g+4]; ld.global.f32 %f3, [g+8]; ld.global.f64 %d1, [h];
    ld.global.f64 %d2, [h+8]; add.f64 %d1, %d1, %d2; cvt.rn.f32.f64 %f4, %d1; sub.f32 %f3, %f1, %f3; mul.f32 %f3, %f3, %f2; add.f32 %f3, %f3, %f4;"""
    assert run(body, module, kind="f32", result="%f3") == [12.0] * 4


def test_bytes_of_an_address_initialise_bytes(run: Any) -> None:
    """As LLVM writes a pointer in a packed structure."""
    masks = ", ".join(f"{0xFF << 8 * n:#x}(generic(x)+4)" for n in range(8))
    module = f".global .u32 x[2] = {{5, 77}};\n.global .align 8 .u8 c[16] = {{1, {masks}, 9}};\n"
    bytes_of = "".join(
        f"ld.global.u8 %rd2, [c+{n + 1}]; shl.b64 %rd2, %rd2, {8 * n}; or.b64 %rd1, %rd1, %rd2; "
        for n in range(8)
    )
    body = f"mov.b64 %rd1, 0; {bytes_of} ld.u32 %r0, [%rd1]; ld.global.u8 %r1, [c+9]; add.u32 %r0, %r0, %r1;"
    assert run(body, module) == [86] * 4


@pytest.mark.parametrize(
    "declaration",
    [".global .u32 x[2] = {1, 2, 3};", ".global .u32 x = 1.5;", ".global .f32 x = 1;", ".shared .u32 x = 1;", ".local .u32 x = 1;",
     ".global .u32 x[];", ".global .u32 x[0];", ".global .u32 x[2] = {1 2};", ".global .u32 x = {1, 2};", ".global .bf16 x;",
     ".global .u32 x = nowhere;", ".global .u32 x; .global .b8 y[1] = {0xfff(x)};", ".global .u32 x; .global .b8 y[1] = {0(x)};",
     ".global .u32 x; .global .b32 y[1] = {0xff(x)};", ".global .b8 y[1] = {0xff(5)};", ".global .b8 y[1] = {0xff(nowhere)};", ".global .u32 x 5;", ".global .align 3 .u32 x;", ".global x;", ".reg .tf32 x;"],
)  # fmt: skip
def test_a_wrong_declaration_is_refused(refusal: Any, declaration: str) -> None:
    assert "line " in refusal(declaration)


@pytest.mark.parametrize("length", ["", "64"])
def test_shared_memory_of_the_launch_is_no_variable_of_a_function(refusal: Any, length: str) -> None:
    """It would lie where other variables of the function lie."""
    said = refusal(f".extern .shared .align 16 .b8 own[{length}]; mov.u32 %r0, own;")
    assert "a variable of a function is not .extern" in said


def _offsets(device: Any, parameters: str) -> list[tuple[int, int]]:
    ptx = f".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry k({parameters}) {{ ret; }}"
    module, function = c.c_void_p(), c.c_void_p()
    device._call("cuModuleLoadData", c.byref(module), c.c_char_p(ptx.encode()))
    device._call("cuModuleGetFunction", c.byref(function), module, b"k")
    found, offset, size = [], c.c_size_t(), c.c_size_t()
    while not device._cuda.cuFuncGetParamInfo(function, len(found), c.byref(offset), c.byref(size)):
        found.append((offset.value, size.value))
    return found


@pytest.mark.parametrize(
    ("attributes", "alignment"),
    [
        (".ptr .global .align 1", 1),
        (".ptr .global .align 16", 16),
        (".ptr .align 1", 1),
        (".ptr", 0),
        (".ptr .shared", 0),
        ("", 0),
    ],
)
def test_the_alignment_of_a_pointee_is_not_the_parameters(
    device: Any, attributes: str, alignment: int
) -> None:
    """As Triton writes its pointers: a pointer behind an int begins at a multiple of eight."""
    found = _offsets(
        device, f".param .u64 {attributes} a, .param .u32 n, .param .u64 {attributes} b, .param .u8 c"
    )
    assert found == [(0, 8), (8, 4), (16, 8), (24, 1)]


def test_the_alignment_of_a_parameter_is_its_own(device: Any) -> None:
    assert _offsets(device, ".param .u8 a, .param .align 16 .b8 b[20], .param .u16 c") == [
        (0, 1),
        (16, 20),
        (36, 2),
    ]


def test_a_pointer_behind_a_number_arrives(device: Any) -> None:
    ptx = """.version 8.4
.target sm_70
.address_size 64
.visible .entry k(.param .u64 .ptr .global .align 1 from, .param .u32 n, .param .u64 .ptr .global .align 1 to)
{ .reg .u64 %rd<3>; .reg .u32 %r<3>; ld.param.u64 %rd1, [from]; ld.param.u64 %rd2, [to]; ld.param.u32 %r1, [n];
  ld.global.u32 %r2, [%rd1]; add.u32 %r2, %r2, %r1; st.global.u32 [%rd2], %r2; ret; }"""
    given, out = np.array([40], np.uint32), np.zeros(1, np.uint32)
    device.run(ptx, "k", 1, 1, given, np.uint32(2), out)
    assert out.tolist() == [42]


def test_shared_memory_with_a_size_is_there_without_the_launch_asking(run: Any, device: Any) -> None:
    body = "st.shared.u32 [x+256], 77; ld.shared.u32 %r0, [x+256]; mov.u32 %r1, x; shr.u32 %r1, %r1, 24; add.u32 %r0, %r0, %r1;"
    assert run(body, module=".extern .shared .align 16 .b8 x[260];") == [77] * 4
    ptx = ".version 8.0\n.target sm_70\n.address_size 64\n.extern .shared .align 16 .b8 x[260];\n.visible .entry k() { .reg .u32 %r; mov.u32 %r, x; ret; }"
    module, function, value = c.c_void_p(), c.c_void_p(), c.c_int()
    device._call("cuModuleLoadData", c.byref(module), c.c_char_p(ptx.encode()))
    device._call("cuModuleGetFunction", c.byref(function), module, b"k")
    device._call("cuFuncGetAttribute", c.byref(value), 1, function)  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
    assert value.value == 260


def test_shared_memory_without_a_size_is_the_launches(run: Any) -> None:
    body = "st.shared.u32 [x+60], 78; ld.shared.u32 %r0, [x+60];"
    assert run(body, module=".extern .shared .align 16 .b8 x[];", shared=64) == [78] * 4


@pytest.mark.parametrize("align", [16, 128, 1024])
def test_shared_memory_of_the_launch_begins_at_its_alignment(run: Any, align: int) -> None:
    body = ".shared .b32 before; st.shared.u32 [before], 1; mov.u32 %r0, x; ld.shared.u32 %r1, [before]; add.u32 %r0, %r0, %r1;"
    assert run(body, module=f".extern .shared .align {align} .b8 x[];", shared=64) == [align + 1] * 4
