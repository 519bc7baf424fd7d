"""The tier `auto`: the interpreter begins, and code that was compiled in the background takes over."""

from __future__ import annotations

from gpukernel.remoting.profile.figures import KernelTier
from tests.native.simgpu_profile.conftest import HEAD, tiers

# Each thread adds up the numbers below `count` and adds that to its word.
SUM = (
    HEAD
    + """.visible .entry sum(.param .u64 to, .param .u32 count) {
  .reg .b64 %rd<4>; .reg .b32 %r<8>; .reg .pred %p;
  ld.param.u64 %rd1, [to]; ld.param.u32 %r1, [count];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r5, %r2, %r3, %r4;
  mul.wide.u32 %rd2, %r5, 4; add.u64 %rd3, %rd1, %rd2; ld.global.u32 %r6, [%rd3]; mov.u32 %r7, 0;
again: add.u32 %r6, %r6, %r7; add.u32 %r7, %r7, 1; setp.lt.u32 %p, %r7, %r1; @%p bra again;
  st.global.u32 [%rd3], %r6; ret; }
"""
)
BEGIN = f"PTX = '''{SUM}'''\nok(d.cuMemsetD8(room, 0, 1 << 20))\n"
CHECK = """
got = (ctypes.c_uint32 * (1 << 18))(); ok(d.cuMemcpyDtoH(ctypes.addressof(got), room, 1 << 20))
assert set(got) == {EXPECTED}, set(got)
"""


def run(code: str, tier: str = "auto") -> dict[str, KernelTier]:
    return tiers(BEGIN + code, env={"GPUKERNEL_SIMGPU_TIER": tier})


def test_a_kernel_that_is_launched_once_is_interpreted() -> None:
    found = run("launch(PTX, 'sum', 1, 32, room, ctypes.c_uint32(10))")["sum"]
    assert (found.launches, found.compiled_launches, found.compiled, found.compile_seconds) == (
        1,
        0,
        False,
        0,
    )
    assert found.reason == "it is compiled when it is launched again, or runs for 2 ms"


def test_a_kernel_that_is_launched_again_is_compiled_in_the_background() -> None:
    code = "launch(PTX, 'sum', 1, 32, room, ctypes.c_uint32(10), times=40, pause=0.02)"
    found = run(code)["sum"]
    assert (found.launches, found.compiled, found.reason) == (40, True, "")
    assert 0 < found.compiled_launches < 40  # the first was the interpreter's
    assert found.compile_seconds > 0


def test_code_takes_over_between_two_blocks_of_one_launch() -> None:
    code = "launch(PTX, 'sum', 2048, 128, room, ctypes.c_uint32(2000))" + CHECK.replace("EXPECTED", "1999000")
    found = run(code)["sum"]
    assert (found.launches, found.compiled_launches, found.compiled) == (1, 1, True)


def test_what_is_not_compiled_says_why() -> None:
    long = "launch(PTX.replace('mov.u32 %r7, 0;', 'mov.u32 %r7, 0;' * 4100), 'sum', 1, 32, room, ctypes.c_uint32(10))"
    found = run(long, "compiled")["sum"]
    assert (found.launches, found.compiled_launches, found.compiled) == (1, 0, False)
    assert "4096" in found.reason


def test_modules_may_go_while_their_kernels_wait_to_be_compiled() -> None:
    """Two hundred modules, each with a kernel of its own, unloaded right after its second launch."""
    code = """
for n in range(200):
    launch(PTX.replace("mov.u32 %r7, 0;", f"mov.u32 %r7, 0; mov.u32 %r7, {n % 7}; mov.u32 %r7, 0;" * (1 + n % 50)), "sum", 2048, 128, room, ctypes.c_uint32(1), times=2)
    ok(d.cuModuleUnload(module))
""" + CHECK.replace("EXPECTED", "0")
    run(code)


def test_the_table_of_kernels_has_a_bound() -> None:
    code = """
for n in range(600):
    launch(PTX.replace("entry sum", f"entry sum{n}"), f"sum{n}", 1, 32, room, ctypes.c_uint32(1)); ok(d.cuModuleUnload(module))
"""
    found = run(code, "interpreter")
    assert len(found) == 512
    assert "sum0" in found
    assert "sum599" not in found
