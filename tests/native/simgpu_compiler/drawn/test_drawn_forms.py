"""Kernels that are drawn from the table of forms leave the same in both tiers, and have every operation that the compiler knows.

``python -m tests.native.simgpu_compiler.drawn.test_drawn_forms SEED SECONDS`` draws kernels for so long, runs each in the interpreter and in
the compiled tier with all vectors that there are, and leaves those that differ, with no more in them than makes them differ, in files.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from gpukernel.native import simgpu_library
from tests.native.simgpu_compiler.conftest import SANITIZED, VECTORS, Tiers
from tests.native.simgpu_compiler.drawn.kernels import Drawing, deal, deck
from tests.native.simgpu_exec.conftest import Device

NOBODY_WRITES = (
    r"cvt\.sat\.[su]\d+\.[su]\d+",  # where nothing is out of range, which PTX refuses
    r"setp\.(lt|le|gt|ge)\.b\d+",  # bits are equal or not
    r"sat\.bf16(x2)?", r"set\.b64", r"relu\.f32",  # of instructions that there are not, or that are interpreted
    r"(ld|st)\.\w+\.v4\.u64\.64",  # 32 bytes at once: of newer devices
    r"st\.\w+\.v\d\.s(8|16)\.\d+", r"(st\.param|local)\..*", r"ret",  # of functions that are called: they are interpreted
    r"trap", r"nothing",
)  # fmt: skip
"""Operations that the compiler knows, and that no drawn kernel can have."""

KNOWN: set[str] = set()
"""The operations that the compiler knows, which it says once in a process."""


def run(device: Device, drawing: Drawing, number: int, how: str, body: list[str] | None = None) -> bytes:
    """Return what a kernel leaves: what it stores, and each thread's own bytes."""
    os.environ["GPUKERNEL_SIMGPU_TIER"] = "interpreter" if how == "interpreter" else "compiled"
    os.environ["GPUKERNEL_SIMGPU_VECTORS"] = "" if how == "interpreter" else how
    text, arrays = drawing.text(body), drawing.arrays(number)
    device.run(text, "k", drawing.grid, drawing.block, *arrays, drawing.parameters(number))
    return arrays[2].tobytes() + arrays[1].tobytes()


def differs(device: Device, drawing: Drawing, number: int, how: str, body: list[str] | None = None) -> bool:
    """Return whether the tiers differ."""
    return run(device, drawing, number, "interpreter", body) != run(device, drawing, number, how, body)


def shrunk(device: Device, drawing: Drawing, number: int, how: str) -> list[str]:
    """Return as few statements as make the tiers differ."""
    body, step = list(drawing.body), 64
    while step:
        at = 0
        while at < len(body):
            less = [line for n, line in enumerate(body) if not (at <= n < at + step and line.endswith("//-"))]
            if len(less) < len(body) and differs(device, drawing, number, how, less):
                body = less
            else:
                at += step
        step //= 2
    return body


def place(drawing: Drawing, one: bytes, other: bytes) -> str:
    """Say where two answers differ first."""
    a, b = (np.frombuffer(each, np.uint8) for each in (one, other))
    at = int(np.flatnonzero(a != b)[0])
    thread, byte = divmod(at, drawing.out_bytes)
    if thread >= drawing.all:
        return f"byte {at - drawing.all * drawing.out_bytes} of what threads have of their own"
    names = [
        line.split(",")[-1].strip(" ;")
        for line in drawing.text().splitlines()
        if line.startswith("st.global") and "%out+" in line
    ]
    return f"thread {thread}, row {byte // 16} {names[byte // 16] if byte // 16 < len(names) else ''}"


@pytest.mark.parametrize("seed", range(0, 200, 5))
def test_a_drawn_kernel_leaves_the_same_in_both_tiers(tiers: Tiers, vectors: str, seed: int) -> None:
    drawing = Drawing(seed)
    text = drawing.text()
    args = drawing.grid, drawing.block, *drawing.arrays(seed), drawing.parameters(seed)
    interpreted, compiled = (tiers.run(tier, text, "k", *args) for tier in ("interpreter", "compiled"))
    assert ": compiled: " in tiers.said[-1]
    assert compiled[2].any()
    assert SANITIZED or all(np.array_equal(a, b) for a, b in zip(interpreted, compiled, strict=True)), text


def test_each_operation_that_the_compiler_knows_is_drawn(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Deal the whole table once, and see each operation; ``-rP`` shows how often each is there."""
    monkeypatch.setenv("GPUKERNEL_SIMGPU_TIER", "compiled")
    monkeypatch.setenv("GPUKERNEL_SIMGPU_TIER_LOG", "operations")
    counts: Counter[str] = Counter()
    for seed in range(deal()):
        drawing = Drawing(seed)
        tiers.device.run(
            drawing.text(), "k", drawing.grid, drawing.block, *drawing.arrays(seed), drawing.parameters(seed)
        )
        said = capfd.readouterr().err
        assert " k: compiled: " in said, said
        for line in re.findall("the compiler knows:(.*)", said):
            KNOWN.update(line.split())
        for name, count in re.findall(r" (\S+):(\d+)", said.split(" k: operations:")[1]):
            counts[name] += int(count)
    reached = {name.split("=")[0] for name in counts}
    by_code = sum(name.endswith("=code") for name in counts)
    print(
        f"{deal()} kernels of {len(deck())} forms: {len(reached)} of {len(KNOWN)} operations, {by_code} of them as code"
    )
    print(*(f"{count:7} {name}" for name, count in sorted(counts.items())), sep="\n")
    missing = {
        name for name in KNOWN - reached if not any(re.fullmatch(each, name) for each in NOBODY_WRITES)
    }
    assert KNOWN
    assert not missing, sorted(missing)


def main(seed: int, seconds: float) -> None:
    """Draw kernels from a seed on, leave those that differ in files, and name those that were not compiled."""
    os.environ["GPUKERNEL_SIMGPU"] = "h100"
    os.environ["GPUKERNEL_SIMGPU_TIER_LOG"] = "1"
    device, end, number = Device(str(simgpu_library())), time.monotonic() + seconds, seed
    others = interpreted = 0
    with tempfile.TemporaryFile() as said, contextlib.ExitStack() as restored:
        errors = sys.stderr.fileno()
        restored.callback(os.dup2, os.dup(errors), errors)
        os.dup2(said.fileno(), errors)  # the library says there what it has compiled
        while time.monotonic() < end:
            drawing = Drawing(number)
            want = run(device, drawing, number, "interpreter")
            for how in VECTORS:
                said.truncate(0)
                said.seek(0)
                got = run(device, drawing, number, how)
                said.seek(0)
                if b": compiled: " not in (text := said.read()):
                    interpreted += 1
                    print(f"kernel {number}, {how}: not compiled: {text.decode().strip()}", flush=True)
                if got != want:
                    others += 1
                    print(
                        f"kernel {number}, {drawing.grid} blocks of {drawing.block}, {how}: {place(drawing, want, got)}",
                        flush=True,
                    )
                    Path(f"drawn.{number}.ptx").write_text(drawing.text(shrunk(device, drawing, number, how)))
            number += 1
    print(
        f"{number - seed} kernels from {seed} on, {others} times another answer, {interpreted} times not compiled"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
