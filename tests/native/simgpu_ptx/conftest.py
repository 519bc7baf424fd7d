"""PTX programs of a few lines on a simulated device: each thread has its number, and stores one result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_exec.conftest import LaunchFailed, device, launch_failed

__all__ = ["device", "launch_failed"]

FRAME = """.version 8.7
.target sm_90
.address_size 64
{module}
.visible .entry k(.param .u64 out)
{{
    .reg .b64 %at; .reg .u32 %i; .reg .pred %p<4>; .reg .u32 %r<10>; .reg .u64 %rd<10>; .reg .f32 %f<10>;
    mov.u32 %i, %tid.x;
    mov.u32 %r0, 0;
{body}
    ld.param.u64 %at, [out];
    mad.wide.u32 %at, %i, {size}, %at;
    st.global.{kind} [%at], {result};
    ret;
}}
"""
Run = Callable[..., list[int]]
Refusal = Callable[..., str]


def text(body: str, module: str = "", kind: str = "u32", result: str = "%r0") -> str:
    return FRAME.format(body=body, module=module, kind=kind, result=result, size=int(kind[1:]) // 8)


@pytest.fixture
def run(device: Any) -> Run:
    """Run a body with what it needs before the kernel, and return each thread's result."""

    def run(
        body: str, module: str = "", threads: int = 4, kind: str = "u32", result: str = "%r0", shared: int = 0
    ) -> list[int]:
        out = np.zeros(
            threads, {"u": np.uint8, "f": np.float32}[kind[0]] if kind == "f32" else f"uint{kind[1:]}"
        )
        device.run(text(body, module, kind, result), "k", 1, threads, out, shared=shared)
        return out.tolist()  # type: ignore[no-any-return]

    return run


@pytest.fixture
def refusal(device: Any, capfd: pytest.CaptureFixture[str]) -> Refusal:
    """Return the sentence with which a program is refused, which ends before its body where it is not."""

    def refusal(body: str, module: str = "") -> str:
        with pytest.raises(LaunchFailed):
            device.run(text("ret; " + body, module), "k", 1, 1, np.zeros(1, np.uint32))
        said = capfd.readouterr()
        return said.out + said.err

    return refusal


def line_of(marked: str, module: str = "") -> int:
    """Return the line of the program on which ``marked``, a part of the body, stands."""
    return next(n for n, line in enumerate(text(marked, module).split("\n"), 1) if marked in line)
