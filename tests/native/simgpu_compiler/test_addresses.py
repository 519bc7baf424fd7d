"""Hostile addresses of shared and global memory: compiled code reaches no byte that the interpreter does not."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.native.simgpu_compiler.conftest import Tiers
from tests.native.simgpu_exec import fault

OFFSETS = (-(2**31), -(2**31) + 64, -(2**30) - 8, -(2**30), -64, 0, 64, 2**30, 2**31 - 64)
"""Constant parts of addresses: with a register beside them a sum of 32 bits may wrap around."""

LANES = {
    # Permuted, so that no lane's address follows from another's; lane 19 alone leaves the array.
    "inside": "",
    # Side by side, which is seen when it runs.
    "inside in a row": "sub.u32 %n, %n, 5; mul.lo.u32 %n, %n, 5; and.b32 %n, %n, 31; mul.wide.u32 %at, %n, {bytes};",
    "behind": "@%here mov.u64 %at, 256;",
    "before": "@%here mov.u64 %at, -8;",
    "far": "@%here mov.u64 %at, 0x80000000;",
}
TEMPLATE = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry k(.param .u64 out)
{{
    .reg .pred %p, %here;
    .reg .b32 %t, %n, %low;
    .reg .b64 %at, %wide, %base;
    .reg .b{bits} %value, %got;
    .shared .align 16 .b8 s[256];
    mov.u32 %t, %tid.x;
    setp.eq.u32 %here, %t, 19;
    mad.lo.u32 %n, %t, 13, 5;
    and.b32 %n, %n, 31;
    mul.wide.u32 %at, %n, {bytes};
    {lane}
    cvt.u{bits}.u32 %value, %n;
    mov.u64 %base, s;
    {base}
    add.u64 %at, %at, %base;
    add.u64 %wide, %at, {minus};
    cvt.u32.u64 %low, %wide;
    {body}
    ret;
}}
"""
READ = """
    {narrow_at}
    st.{space}.b{bits} [{plain}], %value;
    bar.sync 0;
    ld.{space}.b{bits} %got, [{address}+{offset}];
    setp.ne.b{bits} %p, %got, %value;
    @%p trap;
"""
WRITE = """
    {narrow_at}
    st.{space}.b{bits} [{address}+{offset}], %value;
    bar.sync 0;
    ld.{space}.b{bits} %got, [{plain}];
    setp.ne.b{bits} %p, %got, %value;
    @%p trap;
"""


def kernel(space: str, address_bits: int, bits: int, body: str, offset: int, lane: str) -> str:
    narrow = address_bits == 32
    plain = "%t" if narrow else "%at"
    text = body.format(
        space=space,
        bits=bits,
        address="%low" if narrow else "%wide",
        plain=plain,
        offset=offset,
        narrow_at="cvt.u32.u64 %t, %at;" if narrow else "",
    )
    return TEMPLATE.format(
        bits=bits,
        bytes=bits // 8,
        minus=-offset,
        lane=lane.format(bytes=bits // 8),
        base="ld.param.u64 %base, [out];" if space == "global" else "",
        body=text,
    )


@pytest.mark.parametrize(("space", "address_bits"), [("shared", 32), ("shared", 64), ("global", 64)])
@pytest.mark.parametrize("bits", [32, 64])
def test_both_tiers_reach_the_same_bytes(tmp_path: Path, space: str, address_bits: int, bits: int) -> None:
    said: dict[str, dict[str, str]] = {}
    for tier in ("interpreter", "compiled"):
        folder = tmp_path / tier
        folder.mkdir()
        for (how, body), offset, (where, lane) in product(
            {"read": READ, "write": WRITE}.items(), OFFSETS, LANES.items()
        ):
            text = kernel(space, address_bits, bits, body, offset, lane)
            (folder / f"{how}{offset}{where}.32.ptx").write_text(text)
        environment = {**os.environ, "GPUKERNEL_SIMGPU_TIER": tier, "GPUKERNEL_SIMGPU_TIER_LOG": "1"}
        command = [sys.executable, fault.__file__, str(folder), "256", "1"]
        subprocess.run(["setarch", "-R", *command], env=environment, check=True, timeout=280)
        said[tier] = {path.name: path.read_text() for path in sorted(folder.glob("*.txt"))}
    assert len(said["compiled"]) == 2 * len(OFFSETS) * len(LANES)
    for name, text in said["compiled"].items():
        lines = text.splitlines()
        assert any(": compiled: " in line for line in lines), text
        # A process that ended without a word has reached what is not its own.
        rest = [line for line in lines if ": compiled: " not in line]
        assert rest == said["interpreter"][name].splitlines(), name
        assert (rest[-1] == "0") == ("inside" in name), (name, rest)


STEPS = {"inside": 8, "behind": 36, "before": -12, "between two": 2, "apart": 4}
MOVING = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry k(.param .u64 out)
{{
    .reg .pred %p, %here; .reg .b32 %t, %n, %value, %sum; .reg .b{bits} %at;
    .shared .align 16 .b8 s[256];
    mov.u32 %t, %tid.x; setp.eq.u32 %here, %t, 19; mov.u32 %n, s; mad.lo.u32 %n, %t, 4, %n; st.shared.u32 [%n], %t; st.shared.u32 [%n+128], %t;
    bar.sync 0;
    mad.lo.u32 %n, %t, 13, 5; and.b32 %n, %n, 31; mul.lo.u32 %n, %n, 4; add.u32 %n, %n, 24; cvt.u{bits}.u32 %at, %n; mov.u32 %sum, 0;
    mov.u32 %n, 0;
AGAIN:
    {body}
    add.u{bits} %at, %at, {step};
    {alone}
    add.u32 %n, %n, 1; setp.lt.u32 %p, %n, 12; @%p bra AGAIN;
    setp.eq.u32 %p, %sum, 1; @%p trap;
    ret;
}}
"""


@pytest.mark.parametrize("body", ["ld", "st"])
@pytest.mark.parametrize("bits", [32, 64])
def test_addresses_that_move_together_are_looked_at(tmp_path: Path, bits: int, body: str) -> None:
    """Each turn of a loop moves them by as much; what is remembered of them leads nowhere else."""
    said = {}
    uses = {
        "ld": "ld.shared.u32 %value, [%at+{0}]; add.u32 %sum, %sum, %value;",
        "st": "st.shared.u32 [%at+{0}], %t;",
    }
    for tier in ("interpreter", "compiled"):
        folder = tmp_path / tier
        folder.mkdir()
        for name, step in STEPS.items():
            text = MOVING.format(
                bits=bits,
                step=step,
                body=" ".join(uses[body].format(n) for n in (0, 4, 8, 12, 0, 4, 8, 12, 16)),
                alone=f"@%here add.u{bits} %at, %at, 16;" if name == "apart" else "",
            )
            (folder / f"{name}.32.ptx").write_text(text)
        environment = {**os.environ, "GPUKERNEL_SIMGPU_TIER": tier, "GPUKERNEL_SIMGPU_TIER_LOG": "1"}
        command = [sys.executable, fault.__file__, str(folder), "256", "1"]
        subprocess.run(["setarch", "-R", *command], env=environment, check=True, timeout=280)
        texts = {path.name: path.read_text().splitlines() for path in sorted(folder.glob("*.txt"))}
        said[tier] = {
            name: [line for line in lines if ": compiled: " not in line] for name, lines in texts.items()
        }
        if tier == "compiled":
            assert all(any(": compiled: " in line for line in lines) for lines in texts.values()), texts
    assert said["compiled"] == said["interpreter"]
    assert {name.split(".")[0] for name, lines in said["compiled"].items() if lines[-1] == "0"} == {"inside"}


def test_one_generic_address_of_local_memory_is_a_place_for_each_lane(tiers: Tiers) -> None:
    """By ``cvta.local``, and made up by a student, who knows the window."""
    ptx = """.version 7.0
.target sm_70
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 made_up)
{
    .reg .b32 %t, %v, %w; .reg .b64 %o, %l, %g, %m, %by;
    .local .align 16 .b8 own[16];
    ld.param.u64 %o, [out]; ld.param.u64 %m, [made_up]; mov.u32 %t, %tid.x;
    mov.u64 %l, own; st.local.u32 [%l+4], %t; cvta.local.u64 %g, %l;
    ld.u32 %v, [%g+4];
    and.b64 %g, %l, 0xffffff; add.u64 %m, %m, %g;
    ld.u32 %w, [%m+4];
    mul.wide.u32 %by, %t, 8; add.u64 %o, %o, %by; st.global.v2.u32 [%o], {%v, %w};
    ret;
}
"""
    (got,) = tiers.same(ptx, "k", 1, 64, np.zeros((64, 2), np.uint32), np.uint64(2 << 56))
    np.testing.assert_array_equal(got, np.arange(64).repeat(2).reshape(64, 2))
