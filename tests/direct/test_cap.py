"""The memory cap, which all programs of a lease share."""

from __future__ import annotations

from tests.direct.conftest import DirectPool, says, tell

HOLD = "print(d.cuMemAlloc({mib} << 20)[0].name, flush=True); sys.stdin.readline()\n"
LOOK = "free, total = ok(d.cuMemGetInfo()); print(free >> 20, total >> 20, flush=True)\n"


def test_a_program_sees_its_slice_and_gets_no_more(direct_pool: DirectPool) -> None:
    said = direct_pool.out(
        "begin(); print(ok(d.cuDeviceTotalMem(0)) >> 20); "
        + LOOK
        + "p = ok(d.cuMemAlloc(40 << 20))\n"
        + LOOK
        + "print(d.cuMemAlloc(30 << 20)[0].name)\n"
        + "q = ok(d.cuMemAlloc(24 << 20))\n"
        + LOOK
        + "ok(d.cuMemFree(p)); ok(d.cuMemFree(q)); print(d.cuMemFree(q)[0].name)\n"
        + LOOK
    )
    assert said.split("\n") == [
        "64",
        "64 64",
        "24 64",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "0 64",
        "CUDA_ERROR_INVALID_VALUE",
        "64 64",
    ]


def test_every_way_of_allocating_counts(direct_pool: DirectPool) -> None:
    said = direct_pool.out(
        "begin()\n"
        "ok(d.cuMemAllocPitch(100, 20 << 10, 16)); "  # rows of 100 bytes take 512
        + LOOK
        + "s = ok(d.cuStreamCreate(0)); p = ok(d.cuMemAllocAsync(10 << 20, s)); "
        + LOOK
        + "print(d.cuMemAllocAsync(60 << 20, s)[0].name); ok(d.cuMemFreeAsync(p, s)); ok(d.cuStreamSynchronize(s)); "
        + LOOK
        # a module of 20 MiB, by what the device has less
        + "m = ok(d.cuModuleLoadData(b'.version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .global .align 4 .b8 big[20971520];\\n\\0')); "
        + LOOK
        + "print(d.cuModuleLoadData(b'.version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .global .align 4 .b8 big[62914560];\\n\\0')[0].name); ok(d.cuModuleUnload(m)); "
        + LOOK
    )
    assert said.split("\n") == [
        "54 64",
        "44 64",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "54 64",
        "34 64",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "54 64",
    ]


def test_two_programs_of_a_lease_share_its_cap_and_a_killed_one_gives_back(direct_pool: DirectPool) -> None:
    first = direct_pool.begin(
        "import subprocess; begin()\n"
        + HOLD.format(mib=40)
        + f"""
CHILD = {PRELUDE_AND_HOLD!r}
child = subprocess.Popen([sys.executable, '-c', CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(child.stdout.readline(), end='', flush=True)
"""
        + LOOK
        + "sys.stdin.readline(); print(d.cuMemAlloc(10 << 20)[0].name, flush=True); sys.stdin.readline()\n"
        + "child.kill(); os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)\n"  # dead, but nobody's to forget
        + "print(d.cuMemAlloc(20 << 20)[0].name, flush=True)\n"
        + LOOK
    )
    assert says(first) == "CUDA_SUCCESS"
    tell(first)
    assert says(first) == "CUDA_ERROR_OUT_OF_MEMORY CUDA_SUCCESS"  # the child's 30, then its 20
    assert says(first) == "4 64"
    tell(first)
    assert says(first) == "CUDA_ERROR_OUT_OF_MEMORY"
    tell(first)
    assert says(first) == "CUDA_SUCCESS"
    assert says(first) == "4 64"
    first.communicate()


PRELUDE_AND_HOLD = """
import sys
from cuda.bindings import driver as d
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
print(d.cuMemAlloc(30 << 20)[0].name, d.cuMemAlloc(20 << 20)[0].name, flush=True)
sys.stdin.readline()
"""


def test_of_many_threads_at_the_edge_exactly_those_that_fit_succeed(direct_pool: DirectPool) -> None:
    said = direct_pool.out("""
begin(); context = ok(d.cuCtxGetCurrent()); got = []
def work():
    d.cuCtxSetCurrent(context)
    for _ in range(50):
        code, p = d.cuMemAlloc(5 << 20)
        if int(code) == 0: got.append(p)
        else: assert code.name == 'CUDA_ERROR_OUT_OF_MEMORY', code
threads = [threading.Thread(target=work) for _ in range(8)]
for t in threads: t.start()
for t in threads: t.join()
print(len(got), ok(d.cuMemGetInfo())[0] >> 20)
""")
    assert said == "12 4"
