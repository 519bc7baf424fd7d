"""Contexts that a program creates: names of their own, with flags of their own, for the one that its worker has."""

from __future__ import annotations

import asyncio
import subprocess

from tests.remoting.conftest import worker

CREATED = """
import ctypes, threading
from cuda.bindings import driver as d
def ok(result): assert result[0] == 0, result[0]; return result[1] if len(result) == 2 else result[1:]
def name(result): return result[0].name.removeprefix("CUDA_").removeprefix("ERROR_")
ok(d.cuInit(0)); primary = ok(d.cuDevicePrimaryCtxRetain(0))
def create(flags=0): return ok(d.cuCtxCreate(None, flags, 0)) if d.CUDA_VERSION >= 13000 else ok(d.cuCtxCreate(flags, 0))
def current(): return int(ok(d.cuCtxGetCurrent()))
"""


def says(code: str, lines: list[str]) -> None:
    """Run `code` on a worker of its own, and expect it to print `lines`."""

    async def story() -> None:
        async with worker() as one:
            done = await one.run(CREATED + code)
            assert done.stdout.splitlines() == lines, (done.stdout, done.stderr)
            assert done.returncode == 0, done.stderr

    asyncio.run(story())


def test_each_created_context_has_a_handle_an_id_and_flags_of_its_own() -> None:
    code = """
a, b = create(), create(4); print(len({int(a), int(b), int(primary)}), current() == int(b), ok(d.cuCtxGetFlags()))
print(len({ok(d.cuCtxGetId(each)) for each in (a, b, primary)}), int(ok(d.cuCtxPopCurrent())) == int(b), current() == int(a), ok(d.cuCtxGetFlags()))
print(ok(d.cuDevicePrimaryCtxGetState(0))); ok(d.cuDevicePrimaryCtxRelease(0)); print(ok(d.cuDevicePrimaryCtxGetState(0)), int(ok(d.cuCtxGetDevice())))
print(name(d.cuCtxCreate(None, 0x100, 0) if d.CUDA_VERSION >= 13000 else d.cuCtxCreate(0x100, 0)))
"""
    says(code, ["3 True 4", "3 True True 0", "(0, 1)", "(0, 0) 0", "INVALID_VALUE"])


def test_a_destroyed_context_is_a_wrong_handle_and_says_so_where_it_is_current() -> None:
    code = """
a = create(); said = []
begun, over = threading.Event(), threading.Event()
def other(): ok(d.cuCtxSetCurrent(a)); ok(d.cuMemGetInfo()); begun.set(); over.wait(); said.append(name(d.cuMemAlloc(4))); ok(d.cuCtxSetCurrent(primary)); said.append(name(d.cuMemAlloc(4)))
thread = threading.Thread(target=other); thread.start(); begun.wait(); ok(d.cuCtxDestroy(a)); over.set(); thread.join(); print(said)
print(current(), name(d.cuCtxSetCurrent(a)), name(d.cuCtxPushCurrent(a)), name(d.cuCtxDestroy(a)), name(d.cuMemAlloc(4)), name(d.cuCtxDestroy(primary)))
b = create(); ok(d.cuCtxPushCurrent(primary)); ok(d.cuCtxDestroy(b)); print(current() == int(primary)); ok(d.cuCtxPopCurrent()); print(name(d.cuMemGetInfo()))
"""
    says(
        code,
        [
            "['CONTEXT_IS_DESTROYED', 'SUCCESS']",
            "0 INVALID_CONTEXT INVALID_CONTEXT INVALID_CONTEXT INVALID_CONTEXT INVALID_CONTEXT",
            "True",
            "CONTEXT_IS_DESTROYED",
        ],
    )


def test_what_is_made_in_one_context_is_the_device_s_and_can_be_used_in_another() -> None:
    code = """
a = create(); p = ok(d.cuMemAlloc(16)); s = ok(d.cuStreamCreate(1)); b = create(); ok(d.cuMemsetD8Async(p, 3, 16, s)); ok(d.cuStreamSynchronize(s))
ok(d.cuCtxDestroy(b)); print(current() == int(a)); ok(d.cuCtxDestroy(a)); ok(d.cuCtxSetCurrent(primary)); out = bytearray(16); ok(d.cuMemcpyDtoH(out, p, 16)); print(set(out)); ok(d.cuMemFree(p))
"""
    says(code, ["True", "{3}"])


def test_a_context_that_is_attached_ends_with_its_last_use() -> None:
    code = """
lib = ctypes.CDLL("libcuda.so.1"); a = create(); h, same = ctypes.c_void_p(int(a)), ctypes.c_void_p()
print(lib.cuCtxAttach(ctypes.byref(same), 0), same.value == h.value, lib.cuCtxDetach(h), current() == int(a), lib.cuCtxDetach(h), current())
"""
    says(code, ["0 True 0 True 0 0"])


def test_what_runs_at_the_end_of_a_program_finds_its_context() -> None:
    """Call the library after the main thread's variables are destroyed, as destructors of a framework's statics do."""
    code = """
begin()
cuda, libc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
libc.malloc.restype = libc.strdup.restype = ctypes.c_void_p  # memory that outlives Python
def at_end(function, argument):
    libc.__cxa_atexit(ctypes.cast(function, ctypes.c_void_p), ctypes.c_void_p(argument), None)
at_end(libc.puts, libc.strdup(b"ended"))
for _ in range(20): at_end(cuda.cuCtxPopCurrent_v2, libc.malloc(8))
at_end(cuda.cuCtxGetDevice, libc.malloc(8))
"""

    async def story() -> subprocess.CompletedProcess[str]:
        async with worker() as one:
            return await one.run(code)

    done = asyncio.run(story())
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
