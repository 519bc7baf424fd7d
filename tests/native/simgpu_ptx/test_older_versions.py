"""Texts for GPUs of compute capability 1.x and of old versions of PTX, as CUDA 3 and 4 wrote them."""

from __future__ import annotations

import ctypes as c
from typing import Any

import numpy as np
import pytest

TINY = np.float32(1e-40)  # subnormal

FRAME = """.version {version}
.target {target}
.tex .u64 image;
.entry k(.param .u64 from, .param .u64 to)
{{ .reg .u64 %rd<3>; .reg .f32 %f<4>, %g<4>; .reg .s32 %r<4>; .reg .f64 %d; .reg .pred %p;
  ld.param.u64 %rd1, [from]; ld.param.u64 %rd2, [to]; ld.global.f32 %f1, [%rd1]; ld.global.f32 %f2, [%rd1+4]; ld.global.f32 %f3, [%rd1+8];
  {body}
  st.global.f32 [%rd2], %f1; exit; }}
"""


def _run(
    device: Any,
    body: str,
    x: Any,
    y: Any = 0,
    z: Any = 0,
    version: str = "1.4",
    target: str = "sm_10, map_f64_to_f32",
) -> float:
    text = FRAME.format(version=version, target=target, body=body)
    if version != "1.4":
        text = text.replace(".tex .u64 image;", "")
    out = np.zeros(1, np.float32)
    device.run(text, "k", 1, 1, np.array([x, y, z], np.float32), out)
    return float(out[0])


@pytest.mark.parametrize(
    ("version", "target"),
    [("1.4", "sm_10"), ("2.0", "sm_13"), ("8.7", "sm_13"), ("2.0", "sm_20"), ("3.1", "sm_30")],
)
def test_a_multiply_add_that_names_no_rounding_is_fused(device: Any, version: str, target: str) -> None:
    x = np.float32(1 + 2**-12)
    assert _run(device, "mad.f32 %f1, %f1, %f2, %f3;", x, x, -1, version, target) == 2**-11 + 2**-24
    assert _run(device, "mad.sat.f32 %f1, %f1, %f2, %f3;", 3, 4, 5, version, target) == 1


@pytest.mark.parametrize(("version", "target"), [("3.2", "sm_20"), ("8.7", "sm_90")])
def test_later_texts_name_the_rounding(device: Any, launch_failed: Any, version: str, target: str) -> None:
    with pytest.raises(launch_failed):
        _run(device, "mad.f32 %f1, %f1, %f2, %f3;", 1, 1, 1, version, target)


@pytest.mark.parametrize(
    "body",
    ["add.f32 %f1, %f1, %f1;", "sub.f32 %f1, %f1, %f2;", "mul.f32 %f1, %f1, 0f40000000;", "mad.f32 %f1, %f2, %f2, %f1;", "abs.f32 %f1, %f1;",
     "neg.f32 %f1, %f1; abs.f32 %f1, %f1;", "min.f32 %f1, %f1, 0f3F800000;", "max.f32 %f1, %f1, %f2;", "sqrt.approx.f32 %f1, %f1;",
     "add.rz.f32 %f1, %f1, %f1;", "add.sat.f32 %f1, %f1, %f1;", "cvt.f32.f32 %f1, %f1;", "cvt.sat.f32.f32 %f1, %f1;", "div.approx.f32 %f1, %f1, 0f3F800000;",
     "cvt.f64.f32 %d, %f1; cvt.rn.f32.f64 %f1, %d;", "set.gt.u32.f32 %r1, %f1, %f2; cvt.rn.f32.s32 %f1, %r1;",
     "setp.gt.f32 %p, %f1, %f2; selp.f32 %f1, 0f3F800000, %f2, %p;"],
)  # fmt: skip
def test_the_first_generation_has_no_subnormal_numbers(device: Any, body: str) -> None:
    assert _run(device, body, TINY) == 0


@pytest.mark.parametrize(
    "body", ["add.f32 %f1, %f1, %f2;", "mad.rn.f32 %f1, %f1, 0f3F800000, %f2;", "abs.f32 %f1, %f1;"]
)
def test_later_generations_have_them(device: Any, body: str) -> None:
    assert _run(device, body, TINY, version="2.0", target="sm_20") == TINY


def test_what_is_loaded_and_moved_stays_as_it_is(device: Any) -> None:
    assert _run(device, "mov.f32 %g1, %f1; mov.f32 %f1, %g1;", TINY) == TINY


def test_a_texture_of_its_own_state_space_is_a_reference(device: Any) -> None:
    text = ".version 1.4\n.target sm_10\n.tex .u64 image;\n.entry k() { exit; }\n"
    module, reference = c.c_void_p(), c.c_void_p()
    device._call("cuModuleLoadData", c.byref(module), c.c_char_p(text.encode()))
    device._call("cuModuleGetTexRef", c.byref(reference), module, b"image")
    assert device._cuda.cuModuleGetTexRef(c.byref(reference), module, b"another") == 500  # not found


def test_textures_are_no_state_space_any_more(device: Any, launch_failed: Any) -> None:
    text = ".version 1.5\n.target sm_13\n.tex .u64 image;\n.entry k() { exit; }\n"
    with pytest.raises(launch_failed):
        device.run(text, "k", 1, 1)
