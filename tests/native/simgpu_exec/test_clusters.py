"""Clusters of blocks in PTX: addresses of another block's shared memory, and what is told where they are used wrongly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.real_gpu import SIMULATED_ONLY

ILLEGAL_ADDRESS, LAUNCH_FAILED, INVALID_CLUSTER_SIZE, INVALID_PTX = 700, 719, 912, 218


def kernel(body: str, directives: str = ".explicitcluster .reqnctapercluster 2, 1, 1") -> str:
    """A kernel ``k`` with one pointer in %rd0, its thread in %r0, the rank of its block in %r1 and that of the other in %r2."""
    return f""".version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out) {directives} {{
.reg .b64 %rd<20>; .reg .b32 %r<20>; .reg .pred %p<9>;
.shared .align 16 .b8 box[64];
ld.param.u64 %rd0, [out]; mov.u32 %r0, %tid.x; mov.b32 %r1, %cluster_ctarank; xor.b32 %r2, %r1, 1;
{body}
ret; }}
"""


MEET = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"


def test_an_address_names_its_block(device: Any) -> None:
    """mapa to the other block and to the own one, in every form; getctarank; and what isspacep says of each."""
    body = (
        """
mov.u32 %r3, box; mapa.shared::cluster.u32 %r4, %r3, %r2; mapa.shared::cluster.u32 %r5, box+8, %r2;
cvta.shared.u64 %rd1, box; mapa.u64 %rd2, %rd1, %r2; mapa.u64 %rd3, %rd1, %r1; mapa.u64 %rd4, %rd2, %r1;
getctarank.shared::cluster.u32 %r6, %r4; getctarank.shared::cluster.u32 %r7, %r3; getctarank.u64 %r8, %rd2; getctarank.u64 %r9, %rd4;
isspacep.shared::cluster %p0, %rd2; isspacep.shared::cta %p1, %rd2; isspacep.shared %p2, %rd4; isspacep.shared::cluster %p3, %rd0; isspacep.global %p4, %rd2;
selp.b32 %r10, 1, 0, %p0; selp.b32 %r11, 2, 0, %p1; selp.b32 %r12, 4, 0, %p2; selp.b32 %r13, 8, 0, %p3; selp.b32 %r14, 16, 0, %p4;
add.u32 %r10, %r10, %r11; add.u32 %r10, %r10, %r12; add.u32 %r10, %r10, %r13; add.u32 %r10, %r10, %r14;
add.u32 %r15, %r1, 100; st.shared.u32 [box], %r15; add.u32 %r15, %r1, 200; st.shared.u32 [box+8], %r15;
"""
        + MEET
        + """
ld.shared::cluster.u32 %r11, [%r4]; ld.shared::cluster.u32 %r12, [%r4+8]; ld.shared::cluster.u32 %r13, [%r5]; ld.u32 %r14, [%rd2]; ld.u32 %r15, [%rd3+8]; ld.u32 %r16, [%rd4];
mul.wide.u32 %rd5, %r1, 44; add.u64 %rd5, %rd0, %rd5;
st.global.u32 [%rd5], %r6; st.global.u32 [%rd5+4], %r7; st.global.u32 [%rd5+8], %r8; st.global.u32 [%rd5+12], %r9; st.global.u32 [%rd5+16], %r10;
st.global.u32 [%rd5+20], %r11; st.global.u32 [%rd5+24], %r12; st.global.u32 [%rd5+28], %r13; st.global.u32 [%rd5+32], %r14; st.global.u32 [%rd5+36], %r15; st.global.u32 [%rd5+40], %r16;
"""
        + MEET
    )
    out = np.zeros((2, 11), np.uint32)
    device.run(kernel(body), "k", 2, 1, out)
    expected = [
        [o, s, o, s, 1 + 4, 100 + o, 200 + o, 200 + o, 100 + o, 200 + s, 100 + s] for s, o in ((0, 1), (1, 0))
    ]
    assert out.tolist() == expected


def test_threads_that_have_ended_are_not_waited_for(device: Any) -> None:
    """Half of them end before the barrier, and some between the halves of it, in both blocks."""
    body = (
        "setp.ge.u32 %p0, %r0, 48; @%p0 ret;\n barrier.cluster.arrive; setp.ge.u32 %p1, %r0, 40; @%p1 ret;\n barrier.cluster.wait;\n"
        + MEET
        + "mov.u32 %r5, 1; red.global.add.u32 [%rd0], %r5;\n"
    )
    out = np.zeros(1, np.uint32)
    device.run(kernel(body), "k", 6, 96, out)
    assert out[0] == 6 * 40


@pytest.mark.parametrize("slow", [0, 1])
def test_whoever_arrived_and_ended_does_not_stand_for_another(device: Any, slow: int) -> None:
    """One block's second warp arrives and ends; the other's comes late, and what it has written must be there behind the barrier."""
    body = f"""
setp.eq.u32 %p0, %r1, {slow}; setp.ge.u32 %p1, %r0, 32; @%p0 bra late;
barrier.cluster.arrive; @%p1 ret;
barrier.cluster.wait; ld.volatile.global.u32 %r5, [%rd0]; setp.ne.u32 %p2, %r5, 7; @%p2 trap;
bra.uni done;
late: @!%p1 bra early;
mov.u32 %r6, 0; spin: add.u32 %r6, %r6, 1; setp.lt.u32 %p3, %r6, 200000; @%p3 bra spin;
mov.u32 %r5, 7; st.volatile.global.u32 [%rd0], %r5;
early: barrier.cluster.arrive; barrier.cluster.wait;
done: mov.u32 %r7, 1; red.global.add.u32 [%rd0+4], %r7;
"""
    out = np.zeros(2, np.uint32)
    device.run(kernel(body), "k", 2, 64, out)
    assert out.tolist() == [7, 96]


def test_a_thread_that_is_rounds_behind_is_not_confused(device: Any) -> None:
    """Lanes of one warp that meet at the barrier in different places of a loop, as many rounds as the block's rank says apart."""
    body = """
mov.u32 %r5, 0; and.b32 %r6, %r0, 1; setp.eq.u32 %p0, %r6, 0;
again: barrier.cluster.arrive;
@%p0 bra even;
mov.u32 %r7, 0; spin: add.u32 %r7, %r7, 1; setp.lt.u32 %p2, %r7, 50; @%p2 bra spin;
barrier.cluster.wait; bra.uni met;
even: barrier.cluster.wait;
met: mov.u32 %r8, 1; red.global.add.u32 [%rd0], %r8;
barrier.cluster.arrive; barrier.cluster.wait;
ld.volatile.global.u32 %r9, [%rd0]; add.u32 %r5, %r5, 1; mul.lo.u32 %r10, %r5, 128; setp.ne.u32 %p3, %r9, %r10; @%p3 trap;
barrier.cluster.arrive; barrier.cluster.wait;
setp.lt.u32 %p4, %r5, 20; @%p4 bra again;
"""
    out = np.zeros(1, np.uint32)
    device.run(kernel(body), "k", 2, 64, out)
    assert out[0] == 20 * 128


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        pytest.param(
            "barrier.cluster.arrive; barrier.cluster.arrive; barrier.cluster.wait;",
            LAUNCH_FAILED,
            "A thread arrives at its cluster's barrier again without having waited there, at k (line 8 of its PTX) by thread (0,0,0) in block (0,0,0)",
            id="arrives twice",
        ),
        pytest.param(
            "barrier.cluster.wait;",
            LAUNCH_FAILED,
            "A thread waits at its cluster's barrier without having arrived there, at k (line 8 of its PTX) by thread (0,0,0) in block (0,0,0)",
            id="waits without arriving",
        ),
        pytest.param(
            "setp.eq.u32 %p0, %r1, 1; @%p0 bar.sync 1, 64;\n" + MEET,
            LAUNCH_FAILED,
            "Deadlock: threads wait for others that never come, at k (line 8 of its PTX) by thread (0,0,0) in block (1,0,0)",
            id="a deadlock",
        ),
        pytest.param(
            "mov.u32 %r3, box; mapa.shared::cluster.u32 %r4, %r3, 2; ld.shared::cluster.u32 %r5, [%r4];",
            ILLEGAL_ADDRESS,
            "Invalid __shared__ read of size 4 bytes at k (line 8 of its PTX) by thread (0,0,0) in block (0,0,0): address 0x3000000 is out of bounds, the block has 64 bytes",
            id="a rank that is not there",
        ),
        pytest.param(
            "mov.u32 %r3, box; mapa.shared::cluster.u32 %r4, %r3, %r2; ld.shared::cluster.u32 %r5, [%r4+64];",
            ILLEGAL_ADDRESS,
            "Invalid __shared__ read of size 4 bytes at k (line 8 of its PTX) by thread (0,0,0) in block (0,0,0): address 0x40 is out of bounds, the block has 64 bytes",
            id="beyond the other's memory",
        ),
        pytest.param(
            "mov.u32 %r3, box; mapa.shared::cluster.u32 %r4, %r3, %r2; setp.eq.u32 %p0, %r1, 0; @%p0 ret; st.shared::cluster.u32 [%r4], %r3;",
            ILLEGAL_ADDRESS,
            "Invalid __shared__ write of size 4 bytes at k (line 8 of its PTX) by thread (0,0,0) in block (1,0,0): address 0x0 lies in the shared memory of "
            "block (0,0,0) of the cluster, whose threads have all ended",
            id="a block that has ended",
        ),
    ],
)
@SIMULATED_ONLY
def test_what_is_wrong_is_named(tmp_path: Path, device: Any, body: str, code: int, told: str) -> None:
    file = tmp_path / "k.ptx"
    file.write_text(kernel(body))
    command = [sys.executable, str(Path(__file__).with_name("fault.py")), str(file), "1", "64", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines() == [f"gpukernel: {told}", str(code)]


@pytest.mark.parametrize(
    ("directives", "grid", "code"),
    [
        (".explicitcluster", 2, INVALID_CLUSTER_SIZE),  # nobody says how large
        (".reqnctapercluster 2, 1, 1", 3, INVALID_CLUSTER_SIZE),  # one block is left over
        (".reqnctapercluster 9, 1, 1", 9, INVALID_CLUSTER_SIZE),  # eight are portable
        (".reqnctapercluster 4 .maxclusterrank 4", 4, INVALID_PTX),
        (".reqnctapercluster 2, 2", (2, 2), 0),
        (".maxclusterrank 2", 3, 0),
    ],
)
def test_a_grid_and_its_clusters_fit_each_other(
    device: Any, launch_failed: Any, directives: str, grid: Any, code: int
) -> None:
    def run() -> None:
        device.run(kernel("mov.u32 %r3, 1; red.global.add.u32 [%rd0], %r3;", directives), "k", grid, 1, out)

    out = np.zeros(1, np.uint32)
    if not code:
        run()
        assert out[0] == np.prod(grid)
        return
    with pytest.raises(launch_failed) as failed:
        run()
    assert failed.value.code == code
    assert out[0] == 0
