"""Kernels of large texts, each read when it is first used: they are what they are in a small text."""

from __future__ import annotations

import ctypes as c
from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_exec.conftest import LaunchFailed

HEAD = ".version 8.7\n.target sm_90\n.address_size 64\n"
PAD = '// { /* " as many lines as make a text a large one\n' * 1500

KERNEL = """
.visible .entry {name}(.param .u64 out)
{{
    .reg .b64 %at; .reg .u32 %i; .reg .u32 %r<10>; .reg .u64 %rd<4>;
    mov.u32 %i, %tid.x;
    {body}
    ld.param.u64 %at, [out];
    mad.wide.u32 %at, %i, 4, %at;
    st.global.u32 [%at], %r0;
    ret;
}}
"""
THROUGH = """    mov.u32 %r1, {variable};
    mad.lo.u32 %r1, %i, 4, %r1;
    st.shared.u32 [%r1], %i;
    ld.shared.u32 %r0, [%r1];"""
BODIES = {
    "plain": "mov.u32 %r0, 7; // }",
    "braces": '{ .pragma "}"; .reg .u32 %r<2>; mov.u32 %r1, 5; } mov.u32 %r0, 9; /* } */',
    "own_shared": ".shared .u32 here[32];" + THROUGH.format(variable="here"),
    "same_shared": ".shared .u32 here[64];" + THROUGH.format(variable="here"),
    "alone": THROUGH.format(variable="of_alone"),
    "first": THROUGH.format(variable="of_two"),
    "second": THROUGH.format(variable="of_two") + THROUGH.format(variable="of_second"),
    "calls": ".param .u32 a; .param .u32 b; st.param.u32 [a], %i; call (b), twice, (a); ld.param.u32 %r0, [b];",
    "lasting": ".global .u32 count = 40; atom.global.add.u32 %r0, [count], 0;",
    "module_variable": "ld.global.u32 %r0, [given];",
}
WANTED = {
    "plain": [7] * 4,
    "braces": [9] * 4,
    "calls": [0, 2, 4, 6],
    "lasting": [40] * 4,
    "module_variable": [11] * 4,
}
MODULE = """
.global .u32 given = 11;
.shared .u32 of_alone[32];
.shared .u32 of_two[32];
.shared .u32 of_second[16];
.entry declared(.param .u64 out);
.func (.param .u32 r) twice(.param .u32 x)
{ .reg .u32 %r0; ld.param.u32 %r0, [x]; add.u32 %r0, %r0, %r0; st.param.u32 [r], %r0; ret; }
"""
TEXT = HEAD + PAD + MODULE + "".join(KERNEL.format(name=name, body=body) for name, body in BODIES.items())
SHARED_SIZE, LOCAL_SIZE, REGISTERS = 1, 3, 4  # CU_FUNC_ATTRIBUTE_…


def found(device: Any, text: str, name: str) -> list[int]:
    out = np.zeros(4, np.uint32)
    device.run(text, name, 1, 4, out)
    return out.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", BODIES)
def test_each_kernel_does_what_it_does(device: Any, name: str) -> None:
    assert len(TEXT) > 64 << 10
    assert found(device, TEXT, name) == WANTED.get(name, [0, 1, 2, 3])


@pytest.mark.parametrize("name", BODIES)
def test_what_a_kernel_takes_is_known_before_its_first_launch(device: Any, name: str) -> None:
    def attributes(text: str) -> list[int]:
        module, function, value = c.c_void_p(), c.c_void_p(), c.c_int()
        device._call("cuModuleLoadData", c.byref(module), c.c_char_p(text.encode()))
        device._call("cuModuleGetFunction", c.byref(function), module, name.encode())
        values = []
        for attribute in (SHARED_SIZE, LOCAL_SIZE, REGISTERS):
            device._call("cuFuncGetAttribute", c.byref(value), attribute, function)
            values.append(value.value)
        device._call("cuModuleUnload", module)
        return values

    assert attributes(TEXT) == attributes(TEXT.replace(PAD, ""))


def test_a_wrong_kernel_is_refused_with_its_line_when_it_is_used(
    device: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    text = TEXT + KERNEL.format(name="wrong", body="add.u33 %r0, %r0, 1;")
    line = text[: text.index("add.u33")].count("\n") + 1
    assert found(device, text, "plain") == WANTED["plain"]
    for _ in range(2):
        with pytest.raises(LaunchFailed) as refused:
            found(device, text, "wrong")
        assert refused.value.code == 218  # CUDA_ERROR_INVALID_PTX
        assert f"wrong: line {line}: " in capfd.readouterr().err


@pytest.mark.parametrize(
    "rest",
    ["}", ".visible .entry open(.param .u64 x) { ret;", "/*", '.entry e() { .pragma "', ".entry e(", ".funk"],
)
def test_a_text_that_does_not_end_or_is_none_is_refused_when_it_is_loaded(device: Any, rest: str) -> None:
    module = c.c_void_p()
    with pytest.raises(LaunchFailed) as refused:
        device._call("cuModuleLoadData", c.byref(module), c.c_char_p((TEXT + rest).encode()))
    assert refused.value.code == 218


def test_a_kernel_that_is_defined_twice_is_refused_when_it_is_loaded(device: Any) -> None:
    module = c.c_void_p()
    with pytest.raises(LaunchFailed):
        device._call(
            "cuModuleLoadData",
            c.byref(module),
            c.c_char_p((TEXT + KERNEL.format(name="plain", body="")).encode()),
        )
