"""The host memory of compiled kernels is bounded, each and together; beyond it the interpreter runs them."""

from __future__ import annotations

import ctypes as c
from pathlib import Path

import numpy as np
import pytest

from tests.native.simgpu_compiler.conftest import Tiers

TOO_LARGE = "k: interpreted: its code and tables would take more than 4096 KiB"
HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"


def resident(field: str) -> int:
    """Return a line of /proc/self/status, in KiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0])


def branching(name: str, branches: int, loads: int = 0) -> str:
    """Return a kernel whose lanes part again and again, each time to a place of their own: tables grow by the square."""
    load = "ld.global.u32 %v, [%at]; add.u32 %s, %s, %v;\n" * loads
    body = (
        "".join(f"setp.eq.u32 %p, %n, {n}; @%p bra W{n}; add.u32 %s, %s, {n};\n" for n in range(branches))
        + "bra END;\n"
    )
    body += "".join(f"W{n}: add.u32 %s, %s, {n + 7};\n{load}" for n in range(branches))
    return f""".visible .entry {name}(.param .u64 out)
{{
    .reg .pred %p; .reg .b32 %t, %n, %s, %v; .reg .b64 %o, %by, %at;
    ld.param.u64 %o, [out];
    mov.u32 %t, %tid.x; mul.lo.u32 %n, %t, %t; and.b32 %n, %n, 255; mov.u32 %s, 0;
    and.b32 %v, %n, 15; mul.wide.u32 %at, %v, 4; add.u64 %at, %at, %o;
    {body}
    END: mul.wide.u32 %by, %t, 4; add.u64 %o, %o, %by; st.global.u32 [%o], %s;
    ret;
}}
"""


def test_a_kernel_with_large_tables_is_interpreted(tiers: Tiers) -> None:
    (got,) = tiers.same(HEAD + branching("k", 250, loads=6), "k", 1, 64, np.zeros(64, np.uint32))
    assert len(set(got.tolist())) > 10
    assert tiers.said[-1].endswith(TOO_LARGE)


def test_code_is_not_written_beyond_its_bound(tiers: Tiers) -> None:
    """1300 numbers that are alive at 700 places where the interpreter may go on: each place writes them all down."""
    sums = "".join(f"add.u32 %l{n}, %t, {n};\n" for n in range(1300))
    places = "".join(f"mul.wide.u32 %w, %l{n}, 4; add.u64 %s, %s, %w;\n" for n in range(700))
    uses = "".join(f"xor.b32 %x, %x, %l{n};\n" for n in range(1300))
    ptx = f"""{HEAD}.visible .entry k(.param .u64 out)
{{
    .reg .b32 %l<1300>, %t, %x; .reg .b64 %w, %s, %o;
    ld.param.u64 %o, [out]; mov.u32 %t, %tid.x; mov.u64 %s, 0; mov.u32 %x, 0;
    {sums}{places}{uses}
    st.global.u64 [%o], %s; st.global.u32 [%o+8], %x;
    ret;
}}
"""
    Path("/proc/self/clear_refs").write_text("5")  # proc_pid_clear_refs(5): the peak begins anew
    before = resident("VmRSS")
    tiers.same(ptx, "k", 1, 1, np.zeros(4, np.uint32))
    assert tiers.said[-1].endswith(TOO_LARGE)
    assert resident("VmHWM") - before < 40 << 10  # written to its end it has 54 MB, and took twice that


def test_a_kernel_that_leads_everywhere_is_not_looked_at_for_long(tiers: Tiers) -> None:
    """400 places that each may lead to every other one: 160,000 ways."""
    labels = ", ".join(f"L{n}" for n in range(400))
    places = "".join(f"L{n}: add.u32 %s, %s, {n + 1}; @%p bra END; brx.idx %n, ALL;\n" for n in range(400))
    ptx = f"""{HEAD}.visible .entry k(.param .u64 out)
{{
    .reg .pred %p; .reg .b32 %t, %n, %s; .reg .b64 %o, %by;
    ALL: .branchtargets {labels};
    ld.param.u64 %o, [out]; mov.u32 %t, %tid.x; mov.u32 %s, 0; and.b32 %n, %t, 31; setp.ne.u32 %p, %t, 99;
    brx.idx %n, ALL;
    {places}
    END: mul.wide.u32 %by, %t, 4; add.u64 %o, %o, %by; st.global.u32 [%o], %s;
    ret;
}}
"""
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    (got,) = tiers.same(ptx, "k", 1, 64, np.zeros(64, np.uint32))
    assert got.tolist() == [n % 32 + 1 for n in range(64)]
    assert tiers.said[-1].endswith("its branches lead to too many places")
    assert resident("VmHWM") - before < 40 << 10


def test_all_kernels_together_have_64_mib(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUKERNEL_SIMGPU_TIER", "compiled")
    monkeypatch.setenv("GPUKERNEL_SIMGPU_TIER_LOG", "1")
    cuda, address = tiers.device._cuda, c.c_uint64()
    assert cuda.cuMemAlloc_v2(c.byref(address), c.c_size_t(256)) == 0
    pointers = (c.c_void_p * 1)(c.addressof(address))
    results = set()

    def launch(count: int) -> tuple[c.c_void_p, list[str]]:
        module = c.c_void_p()
        text = HEAD + "".join(branching(f"k{n}", 150) for n in range(count))
        assert cuda.cuModuleLoadData(c.byref(module), c.c_char_p(text.encode())) == 0
        for n in range(count):
            function = c.c_void_p()
            assert cuda.cuModuleGetFunction(c.byref(function), module, f"k{n}".encode()) == 0
            assert cuda.cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, None, pointers, None) == 0
            assert cuda.cuCtxSynchronize() == 0
            words = (c.c_uint * 64)()
            assert cuda.cuMemcpyDtoH_v2(words, address, c.c_size_t(256)) == 0
            results.add(tuple(words))
        return module, capfd.readouterr().err.splitlines()

    module, said = launch(80)
    compiled = [line for line in said if ": compiled: " in line]
    full = [line for line in said if line.endswith("the code of this process's kernels has no more room")]
    assert compiled
    assert full
    assert len(compiled) + len(full) == 80
    assert len(results) == 1, "the interpreter and compiled code differ"
    # What is unloaded makes room again.
    assert cuda.cuModuleUnload(module) == 0
    _, said = launch(2)
    assert all(": compiled: " in line for line in said)
