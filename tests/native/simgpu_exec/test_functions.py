"""The functions that PTX calls approximate, for every sign and exponent, against NumPy in double precision.

The ISA allows more (2^-22 for ``ex2``, an absolute 2^-20.5 for ``sin``); what is computed here is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_exec.conftest import element
from tests.real_gpu import REAL, SIMULATED_ONLY

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "rsqrt": lambda a: 1 / np.sqrt(a),
}


def arguments() -> Any:
    """Return singles with each of the 65,536 upper halves, other lower halves each time, and what is between the usual cases."""
    lower = np.random.default_rng(22).integers(0, 2**16, 2**17, np.uint32)
    bits = np.concatenate([np.arange(2**16, dtype=np.uint32)] * 2) << 16 | lower
    usual = np.random.default_rng(23).uniform(-20, 20, 2**16).astype(np.float32)
    whole = np.arange(-160, 160, dtype=np.float32)
    edges = np.array([0, -0.0, 1, np.inf, -np.inf, np.nan, 2**20, 2.0**20 + 1, 0.03], np.float32)
    return np.concatenate([bits.view(np.float32), usual, whole, edges])


def places(value: Any) -> Any:
    """Return singles as whole numbers in their order: neighbours differ by 1."""
    bits = value.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


@SIMULATED_ONLY
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("some", ["", "setp.lt.u32 %p1, %a, 0x60000000; @%p1 "])
def test_functions_are_rounded_once(device: Any, name: str, some: str) -> None:
    """In warps whose lanes all run, and in those where some do."""
    a = arguments()
    got = element(device, f"{some}{name}.approx.f32 %d, %a;", *[a.view(np.uint32)] * 3, np.uint32)
    runs = a.view(np.uint32) < (0x60000000 if some else 2**32)
    a, got = a[runs], got[runs].view(np.float32)
    with np.errstate(all="ignore"):
        want = FUNCTIONS[name](a.astype(np.float64)).astype(np.float32)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), ~number)
    assert np.abs(places(got[number]) - places(want[number])).max() <= 1
    zero = number & (want == 0)
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))
    whole = np.arange(-149, 128) if name == "ex2" and not some else []
    np.testing.assert_array_equal([got[a == n][0] for n in whole], [np.float32(2.0**n) for n in whole])


@pytest.mark.parametrize("name", ["ex2", "lg2", "sin", "cos", "rsqrt"])
def test_subnormal_arguments_and_results_are_flushed_where_the_instruction_says_so(
    device: Any, name: str
) -> None:
    a = np.array([1e-40, -1e-40, -130.5, -149, 1e-38, 2.0**-126], np.float32)
    got = element(device, f"{name}.approx.ftz.f32 %d, %a;", *[a.view(np.uint32)] * 3, np.uint32)
    seen = np.where(np.abs(a) < 2.0**-126, np.copysign(0, a), a)
    with np.errstate(all="ignore"):
        want = FUNCTIONS[name](seen.astype(np.float64)).astype(np.float32)
    want = np.where(np.abs(want) < np.float32(2.0**-126), np.copysign(np.float32(0), want), want)
    if REAL:  # flushed alike, within the ISA's bounds
        np.testing.assert_allclose(
            got.view(np.float32), want, rtol=2.0**-22, atol=2.0**-14.7 if name in ("sin", "cos") else 0
        )
    else:
        np.testing.assert_array_equal(got.view(np.float32), want)
