"""Two warps that run together, part wherever they differ and meet again: what comes out is what each would have done alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# Each thread: `trips` rounds, in the odd ones of which those who `take` it do something more; then words with its
# warp and, over shared memory, with the warp beside; and all of it again.
PTX = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry rounds(.param .u64 p)
{
    .reg .u64 %at, %mine; .reg .u32 %t, %n, %x, %trips, %take, %i, %odd, %other, %place, %again;
    .reg .pred %more, %takes, %is_odd, %both, %once;
    .shared .align 4 .u32 words[256];
    ld.param.u64 %at, [p];
    mov.u32 %t, %tid.x; mov.u32 %n, %ntid.x;
    mad.wide.u32 %mine, %t, 12, %at;
    ld.global.u32 %x, [%mine]; ld.global.u32 %trips, [%mine+4]; ld.global.u32 %take, [%mine+8];
    setp.ne.u32 %takes, %take, 0;
    mov.u32 %again, 0;
TWICE:
    mov.u32 %i, 0;
ROUND:
    setp.ge.u32 %more, %i, %trips;
    @%more bra DONE;
    mad.lo.u32 %x, %x, 5, %i;
    and.b32 %odd, %i, 1;
    setp.ne.u32 %is_odd, %odd, 0;
    and.pred %both, %is_odd, %takes;
    @%both xor.b32 %x, %x, 977;
    @!%is_odd bra NEXT;
    add.u32 %x, %x, %t;
NEXT:
    add.u32 %i, %i, 1;
    bra ROUND;
DONE:
    shfl.sync.bfly.b32 %other, %x, 1, 31, 0xffffffff;
    add.u32 %x, %x, %other;
    mov.u32 %place, words;
    mad.lo.u32 %place, %t, 4, %place;
    st.shared.u32 [%place], %x;
    bar.sync 0;
    add.u32 %other, %t, 32; rem.u32 %other, %other, %n;
    mov.u32 %place, words;
    mad.lo.u32 %place, %other, 4, %place;
    ld.shared.u32 %other, [%place];
    bar.sync 0;
    xor.b32 %x, %x, %other;
    add.u32 %again, %again, 1;
    setp.lt.u32 %once, %again, 2;
    @%once bra TWICE;
    st.global.u32 [%mine], %x;
    ret;
}
"""
few = st.integers(0, 6)


def model(x: Any, trips: Any, take: Any) -> Any:
    t = np.arange(len(x), dtype=np.uint32)
    for _ in range(2):
        for i in range(int(trips.max())):
            y = x * np.uint32(5) + np.uint32(i)
            if i % 2:
                y = np.where(take != 0, y ^ np.uint32(977), y) + t
            x = np.where(i < trips, y, x).astype(np.uint32)
        x = x + x[t ^ 1]
        x = x ^ np.roll(x, -32)
    return x


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Any, Any]:
    """Rounds and who takes part, of one to six warps: the same for all, for each warp, or for nobody else."""
    warps = draw(st.integers(1, 6))

    def some(of: st.SearchStrategy[int]) -> Any:
        match draw(st.sampled_from(["all", "warps", "threads", "one"])):
            case "all":
                return np.full(32 * warps, draw(of))
            case "warps":
                return np.repeat([draw(of) for _ in range(warps)], 32)
            case "threads":
                return np.array(draw(st.lists(of, min_size=32 * warps, max_size=32 * warps)))
            case _:
                alike = np.full(32 * warps, draw(of))
                alike[draw(st.integers(0, 32 * warps - 1))] = draw(of)
                return alike

    return some(few).astype(np.uint32), some(st.integers(0, 1)).astype(np.uint32)


@pytest.mark.filterwarnings("ignore:overflow")
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(block=blocks())
def test_warps_that_run_together_do_what_each_does_alone(device: Any, block: tuple[Any, Any]) -> None:
    trips, take = block
    x = (np.arange(len(trips)) * 2654435761 % 2**32).astype(np.uint32)
    values = np.ascontiguousarray(np.stack([x, trips, take], axis=1))
    device.run(PTX, "rounds", 1, len(trips), values)
    np.testing.assert_array_equal(values[:, 0], model(x, trips, take))
