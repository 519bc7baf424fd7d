"""Matrices, barriers in memory and asynchronous copies in compiled kernels: by handlers, with the interpreter's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_compiler.conftest import Tiers

HEAD = ".version 7.8\n.target sm_90\n.address_size 64\n"
BODIES = {
    "multiplied": """
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r0,%r2}, {%f0,%f1,%f2,%f3};
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, {%r3,%r1,%r2,%r0}, {%r1,%r2}, {%f0,%f1,%f2,%f3};""",
    "in a loop": """
    mov.u32 %n, 0;
AGAIN: mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1}, {%r2}, {%f1,%f0,%f2,%f3};
    add.u32 %r0, %r0, %n; add.u32 %n, %n, 1; setp.lt.u32 %p, %n, 9; @%p bra AGAIN;""",
    "loaded": """
    st.shared.v4.u32 [%s], {%r0,%r1,%r2,%r3}; bar.warp.sync -1;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0,%r1,%r2,%r3}, [%s];
    cvt.rn.f32.u32 %f0, %r0; cvt.rn.f32.u32 %f1, %r1; cvt.rn.f32.u32 %f2, %r2; cvt.rn.f32.u32 %f3, %r3;""",
    "a barrier in memory": """
    setp.eq.u32 %p, %t, 0; mov.u32 %n, tile; @%p mbarrier.init.shared.b64 [%n+1024], 64; bar.sync 0;
    st.shared.v4.u32 [%s], {%r0,%r1,%r2,%r3};
    mbarrier.arrive.shared.b64 %w, [%n+1024];
WAIT: mbarrier.test_wait.shared.b64 %p, [%n+1024], %w; @!%p bra WAIT;
    xor.b32 %s, %s, 512; ld.shared.v4.f32 {%f0,%f1,%f2,%f3}, [%s];""",
    "copied": """
    cp.async.ca.shared.global [%s], [%a], 16; cp.async.wait_all; bar.sync 0;
    xor.b32 %s, %s, 16; ld.shared.v4.f32 {%f0,%f1,%f2,%f3}, [%s];""",
    "one is elected": """
    elect.sync %n|%p, -1; @%p add.u32 %n, %n, 5; cvt.rn.f32.u32 %f0, %n;""",
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_a_warp_s_instructions(tiers: Tiers, name: str) -> None:
    ptx = f"""{HEAD}.visible .entry k(.param .u64 given, .param .u64 out)
{{
    .reg .pred %p; .reg .b32 %t, %s, %n, %r<4>; .reg .b64 %a, %o, %w; .reg .f32 %f<4>;
    .shared .align 16 .b8 tile[1032];
    ld.param.u64 %a, [given]; ld.param.u64 %o, [out];
    mov.u32 %t, %tid.x; mul.wide.u32 %w, %t, 16; add.u64 %a, %a, %w; add.u64 %o, %o, %w;
    mov.u32 %s, tile; mad.lo.u32 %s, %t, 16, %s;
    ld.global.v4.u32 {{%r0,%r1,%r2,%r3}}, [%a];
    mov.f32 %f0, 0f3f800000; mov.f32 %f1, 0f40000000; mov.f32 %f2, %f0; mov.f32 %f3, %f1;
    {BODIES[name]}
    st.global.v4.f32 [%o], {{%f0,%f1,%f2,%f3}};
    ret;
}}
"""
    given: Any = np.random.default_rng(4).standard_normal((64, 8)).astype(np.float16)
    given_words, out = tiers.same(ptx, "k", 1, 64, given, np.zeros((64, 4), np.float32))
    assert ": compiled: " in tiers.said[-1]
    assert out.any()
    np.testing.assert_array_equal(given_words, given)
