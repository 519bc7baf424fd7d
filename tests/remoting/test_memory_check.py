"""Accesses past an allocation's end: as on a GPU by default, which notices none that stays in the granule, and strictly."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.native.simgpu_driver.test_driver import out
from tests.remoting.conftest import WITHOUT_THREAD_SANITIZER, Worker, worker

KERNELS = r"""
KERNELS = b'''.version 7.0
.target sm_70
.address_size 64
.extern .shared .align 16 .b8 room[];
.visible .entry peek(.param .u64 from, .param .u64 to) {
    .reg .b64 %rd<3>; .reg .b32 %r<2>; ld.param.u64 %rd1, [from]; ld.param.u64 %rd2, [to]; ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd2], %r1; ret; }
.visible .entry poke(.param .u64 to, .param .u64 value) {
    .reg .b64 %rd<3>; .reg .b32 %r<2>; ld.param.u64 %rd1, [to]; ld.param.u32 %r1, [value]; st.global.u32 [%rd1], %r1; ret; }
.visible .entry shared_peek(.param .u64 at, .param .u64 to) {
    .reg .b64 %rd<3>; .reg .b32 %r<4>; ld.param.u32 %r1, [at]; ld.param.u64 %rd2, [to]; mov.u32 %r2, room; add.u32 %r2, %r2, %r1;
    ld.shared.u32 %r3, [%r2]; st.global.u32 [%rd2], %r3; ret; }
.visible .entry shared_poke(.param .u64 at, .param .u64 value) {
    .reg .b32 %r<4>; ld.param.u32 %r1, [at]; ld.param.u32 %r3, [value]; mov.u32 %r2, room; add.u32 %r2, %r2, %r1; st.shared.u32 [%r2], %r3; ret; }
'''
begin(); module = ok(d.cuModuleLoadData(KERNELS + b"\0"))
def run(name, first, second, shared=0, blocks=1):
    values = (ctypes.c_uint64 * 2)(int(first), int(second))
    pointers = (ctypes.c_void_p * 2)(ctypes.addressof(values), ctypes.addressof(values) + 8)
    ok(d.cuLaunchKernel(ok(d.cuModuleGetFunction(module, name)), blocks, 1, 1, 1, 1, 1, shared, 0, ctypes.addressof(pointers), 0))
    return d.cuCtxSynchronize()[0].name.removeprefix("CUDA_ERROR_")
def new(n): return int(ok(d.cuMemAlloc(n)))
out = new(4)
def got():
    number = ctypes.c_uint32(); ok(d.cuMemcpyDtoH(ctypes.addressof(number), out, 4)); return number.value
def peek(at): state = run(b"peek", at, out); return got() if state == "CUDA_SUCCESS" else state
def shared_peek(at, shared): state = run(b"shared_peek", at, out, shared); return got() if state == "CUDA_SUCCESS" else state
"""
PAST = r"gpukernel: warning: Out-of-bounds __global__ {} of size 4 bytes at {} \(line \d+ of its PTX\) by thread \(0,0,0\) in block \(0,0,0\): address 0x\w+ reaches {} bytes past the end of {}; .*GPUKERNEL_MEMCHECK=strict makes it an error\.\n"


async def told(one: Worker, code: str, check: str = "", **options: Any) -> tuple[list[str], str]:
    """Run a program; return the lines that it prints, and what is on its standard error."""
    setting = f"os.environ['GPUKERNEL_MEMCHECK'] = {check!r}\n" if check else ""
    done = await one.run(setting + KERNELS + code, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def run(code: str, check: str = "", **options: Any) -> tuple[list[str], str]:
    async def story() -> tuple[list[str], str]:
        async with worker() as one:
            return await told(one, code, check, **options)

    return asyncio.run(story())


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_an_access_in_the_last_granule_warns_once_and_goes_on(kind: str) -> None:
    code = """p = new(100); print(peek(p + 100), peek(p + 508))
print(run(b"poke", p + 200, 77), run(b"poke", p + 96, 5), peek(p + 200), peek(p + 96)); print(hex(p))"""
    lines, warned = run(code, kind=kind)
    assert lines[:2] == ["0 0", "CUDA_SUCCESS CUDA_SUCCESS 77 5"]
    assert re.fullmatch(PAST.format("read", "peek", 4, f"the allocation of 100 bytes at {lines[2]}"), warned)


def test_an_access_across_the_end_is_one_past_it() -> None:
    lines, warned = run("p = new(99); print(run(b'poke', p + 96, 0x01020304), hex(peek(p + 96)))")
    assert lines == ["CUDA_SUCCESS 0x1020304"]
    assert re.fullmatch(PAST.format("write", "poke", 1, r"the allocation of 99 bytes at 0x\w+"), warned)


@pytest.mark.parametrize(
    ("code", "check"),
    [
        ("p = new(100); print(peek(p + 512))", ""),
        ("p = new(512); print(peek(p + 512))", ""),
        ("new(64); p = new(100); ok(d.cuMemFree(p)); print(peek(p + 100))", ""),
        ("print(shared_peek(128, 32))", ""),
        ("print(shared_peek(0, 0))", ""),
        ("p = new(100); print(peek(p + 100))", "strict"),
        ("p = new(99); print(peek(p + 96))", "strict"),
        ("print(shared_peek(32, 32))", "strict"),
    ],
)
def test_what_stays_an_error(code: str, check: str) -> None:
    lines, warned = run(code, check)
    assert lines[-1] == "ILLEGAL_ADDRESS"
    assert lines[0].startswith("gpukernel: Invalid __")
    assert warned == ""


def test_a_word_that_is_no_check_is_named() -> None:
    lines, warned = run("p = new(100); print(peek(p + 100))", "strickt")
    assert lines == ["0"]
    assert warned.startswith("gpukernel: GPUKERNEL_MEMCHECK=strickt is neither strict nor hardware")


def test_past_shared_memory_lies_what_was_written_there_and_nothing_of_others() -> None:
    """Another program fills 128 bytes of shared memory in every thread that may run a block."""
    fill = "for at in range(0, 128, 4): print(run(b'shared_poke', at, 7, 128, 64)) if at == 124 else run(b'shared_poke', at, 7, 128, 64)"

    async def story() -> None:
        async with worker() as one:
            assert (await told(one, fill))[0] == ["CUDA_SUCCESS"]
            lines, warned = await told(one, "print([shared_peek(at, 20) for at in range(20, 128, 4)])")
            assert lines == [str([0] * 27)]
            assert "4 bytes past the end of the block's 20 bytes of shared memory" in warned
            assert warned.count("\n") == 1

    asyncio.run(story())


def test_the_rest_of_a_granule_holds_nothing_of_another_allocation_or_program() -> None:
    """Memory that was full of sevens is given out again, in every way, with its last granule not full."""
    full = "ps = [new(1 << 20) for _ in range(8)]; [ok(d.cuMemsetD8(p, 7, 1 << 20)) for p in ps]\n"
    again = "print({peek(p + at) for p in [new(100) for _ in range(64)] + [int(ok(d.cuMemAllocAsync(100, 0))) for _ in range(64)] for at in (100, 256, 508)})"

    async def story() -> None:
        async with worker() as one:
            assert (await told(one, full + "ok(d.cuCtxSynchronize())"))[0] == []
            assert (await told(one, again))[0] == ["{0}"]
            give = "[ok(d.cuMemFree(p)) for p in ps[:4]]; [ok(d.cuMemFreeAsync(p, 0)) for p in ps[4:]]\n"
            assert (await told(one, full + give + again))[0] == ["{0}"]
            # What a program leaves past its own end is gone with it.
            mark = "[run(b'poke', new(100) + 200, 9) for _ in range(8)]"
            assert (await told(one, mark))[0] == []
            assert (await told(one, again))[0] == ["{0}"]

    asyncio.run(story())


def test_each_program_of_a_lease_has_its_own_check_and_its_own_warning() -> None:
    async def story() -> None:
        async with worker() as one:
            fine = one.start(KERNELS + "sys.stdin.readline(); print(run(b'poke', new(100), 1))")
            past = "p = new(100); print(peek(p + 100))"
            for _ in range(2):
                lines, warned = await told(one, past)
                assert (lines, warned.count("gpukernel: warning: "), warned.count("\n")) == (["0"], 1, 1)
            lines, warned = await told(one, past, "strict")
            assert (lines[-1], warned) == ("ILLEGAL_ADDRESS", "")
            fine.kill()
            assert "warning" not in fine.communicate()[1]

    asyncio.run(story())


def test_a_program_changes_its_check_while_it_runs() -> None:
    code = """check = ctypes.CDLL("libcuda.so.1").gpukernel_memory_check
p = new(100); print(peek(p + 100), check(1), peek(p + 96)); print(check(0), peek(p + 104), check(1), peek(p + 100))"""
    lines, _ = run(code)
    assert (lines[0], lines[-1]) == ("0 1 0", "1 0 1 ILLEGAL_ADDRESS")
    lines, warned = run(code.split(";")[0] + "; print(check(0), peek(p + 100))", "strict")
    assert lines == ["1 0"]
    assert warned.startswith("gpukernel: warning: ")


def test_large_allocations_are_aligned_and_charged_as_ever() -> None:
    code = """U = 2 << 20
def free(): return ok(d.cuMemGetInfo())[0]
def fits(n): code, p = d.cuMemAlloc(n); int(code) or ok(d.cuMemFree(p)); return int(code) == 0
before = free(); ps = [new(n) for n in (100, U, 100, U + 1, 100, 3 * U, U - 1)]
print([p % U == 0 for p in ps[1:4:2]], ps[5] % 512, before - free() == U + U + 512 + 3 * U + U + 3 * 512)
rest = [new(100)]
while fits(U): rest.append(new(U)); rest.append(new(512)) if fits(512) else 0
print(all(p % U == 0 for p in rest[1::2]), free() < U)"""
    assert run(code)[0] == ["[True, True] 0 True", "True True"]


@WITHOUT_THREAD_SANITIZER
def test_alignment_refuses_nothing_that_the_books_allow() -> None:
    """Allocations and frees at random on a device of its own: one is refused only where the capacity is exceeded."""
    code = """import random
random.seed(20); begin(); total = ok(d.cuMemGetInfo())[1]; live = []; refused = wrong = 0
for turn in range(20000):
    if live and random.random() < .48: ok(d.cuMemFree(live.pop(random.randrange(len(live)))))
    else:
        n = random.choice([random.randrange(1, 4096), random.randrange(1, 4 << 20), (2 << 20) + 1, random.randrange(1, 1 << 30)])
        fits = ok(d.cuMemGetInfo())[0] >= -(-n // 512) * 512
        code, p = d.cuMemAlloc(n); refused += not fits; wrong += fits != (int(code) == 0)
        if int(code) == 0: live.append(p)
print(wrong, refused > 100)"""
    assert out(code, models="v100-16gb") == "0 True"


@WITHOUT_THREAD_SANITIZER
@pytest.mark.parametrize("piece", ["U", "U + 1", "9 * U"])
def test_pieces_take_no_more_of_the_host_s_memory_than_the_program_has(piece: str) -> None:
    """Where a larger piece was before, whole units may be one page of the host each; of a unit that a piece merely begins to use it has
    small ones.  A host without such pages shows nothing here.
    """
    code = f"""U = 2 << 20; n = {piece}; most = 288 << 20; begin()
def resident(): return int(next(line for line in open("/proc/self/smaps_rollup") if line.startswith("Rss:")).split()[1]) << 10
ok(d.cuMemFree(ok(d.cuMemAlloc(most)))); before = resident(); ps = [ok(d.cuMemAlloc(n)) for _ in range(most // n)]
for p in ps: ok(d.cuMemsetD8(p, 1, n))
ok(d.cuCtxSynchronize()); held = resident() - before
for p in ps: ok(d.cuMemFree(p))
print(len(ps) * n <= held < 1.04 * most, resident() - before < most / 20)"""
    assert out(code, models="v100-16gb") == "True True"
