"""One worker and the programs on it: its cap, its books, its faults, its end."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from pathlib import Path

import pytest

from gpukernel import native
from gpukernel.remoting.worker import WorkerStartFailed, adopt_worker, list_devices, start_worker
from gpukernel.remoting.worker_query import usage_of
from tests.remoting.conftest import MIB, Worker, worker
from tests.remoting.virtual_memory import MEMORY


async def until(condition: object, seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # type: ignore[operator]
            await asyncio.sleep(0.02)


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


async def unused(one: Worker) -> bool:
    status = await one.handle.status()
    return status.connections == 0 and status.memory_used_bytes == 0


FINE = "begin(); a = ok(d.cuMemAlloc(1 << 20)); ok(d.cuMemsetD8(a, 1, 1 << 20)); ok(d.cuCtxSynchronize()); print('fresh')"


def test_two_programs_share_one_cap_and_what_a_program_had_goes_with_it() -> None:
    async def story() -> None:
        async with worker(memory_mib=10) as one:
            first = one.start(
                "begin(); ok(d.cuMemAlloc(8 << 20)); print('has', flush=True); sys.stdin.read()"
            )
            assert first.stdout is not None
            assert await asyncio.to_thread(first.stdout.readline) == "has\n"
            second = await one.run("begin(); print(d.cuMemAlloc(4 << 20)[0].name, d.cuMemGetInfo()[1:])")
            assert second.stdout == f"CUDA_ERROR_OUT_OF_MEMORY ({2 * MIB}, {10 * MIB})\n"
            first.kill()
            first.communicate()
            await until(lambda: unused(one))
            third = await one.run("begin(); ok(d.cuMemAlloc(10 << 20)); print('all of it')")
            assert third.stdout == "all of it\n"
            assert (await one.handle.status()).memory_peak_bytes == 10 * MIB

    asyncio.run(story())


def test_the_cap_holds_for_every_way_to_allocate() -> None:
    code = """begin()
print(d.cuMemAlloc(11 << 20)[0].name, d.cuMemAllocPitch(1 << 20, 11, 4)[0].name, d.cuMemAllocAsync(11 << 20, 0)[0].name)
print(d.cuMemAlloc(2**64 - 1)[0].name, d.cuMemAllocPitch(2**40, 2**40, 4)[0].name, d.cuMemAlloc(0)[0].name)
a = ok(d.cuMemAlloc(10 << 20)); print(d.cuMemAlloc(1)[0].name); ok(d.cuMemFree(a)); ok(d.cuMemAlloc(10 << 20))
"""

    async def story() -> None:
        async with worker(memory_mib=10) as one:
            done = await one.run(code)
            oom = "CUDA_ERROR_OUT_OF_MEMORY"
            assert done.stdout.split() == [oom] * 5 + ["CUDA_ERROR_INVALID_VALUE", oom], done.stderr

    asyncio.run(story())


def test_freeing_twice_or_what_is_not_yours_is_an_error_and_gives_no_memory() -> None:
    code = """begin()
a = ok(d.cuMemAlloc(1 << 20)); ok(d.cuMemFree(a)); d.cuMemFree(a); print(d.cuCtxSynchronize()[0].name)
d.cuMemFree(12345); print(d.cuCtxSynchronize()[0].name, d.cuMemGetInfo()[1:])
"""

    async def story() -> None:
        async with worker(memory_mib=4) as one:
            done = await one.run(code)
            bad = "CUDA_ERROR_INVALID_VALUE"
            assert done.stdout == f"{bad}\n{bad} ({4 * MIB}, {4 * MIB})\n", done.stderr

    asyncio.run(story())


def test_a_pointer_outside_the_lease_s_memory_is_refused() -> None:
    code = """begin()
a = ok(d.cuMemAlloc(4096)); host = ctypes.create_string_buffer(8192); here = ctypes.addressof(host)
for call in (lambda: d.cuMemcpyDtoH(here, int(a), 8192), lambda: d.cuMemcpyDtoH(here, 0x7000_0000_0000, 8),
             lambda: d.cuMemcpyHtoD(int(a) + 4090, host.raw[:16], 16), lambda: d.cuMemsetD8(int(a), 1, 4097),
             lambda: d.cuMemcpyDtoD(int(a), 4096, 16)):
    first = call()[0]
    print((first if int(first) else d.cuCtxSynchronize()[0]).name)
"""

    async def story() -> None:
        async with worker() as one:
            done = await one.run(code)
            assert done.stdout.split() == ["CUDA_ERROR_INVALID_VALUE"] * 5, done.stderr

    asyncio.run(story())


def test_an_illegal_access_is_sticky_and_the_very_next_program_finds_a_fresh_context() -> None:
    wild = "begin(); d.cuLaunchKernel(load(WILD, b'wild'), 1,1,1, 1,1,1, 0, 0, 0, 0); print(d.cuCtxSynchronize()[0].name, d.cuCtxSynchronize()[0].name)"

    async def story() -> None:
        async with worker() as one:
            before = await one.handle.status()
            for _ in range(3):
                done = await one.run(wild)
                told, codes = done.stdout.splitlines()
                assert "Invalid __global__ write of size 4 bytes at wild" in told
                assert codes.split() == ["CUDA_ERROR_ILLEGAL_ADDRESS"] * 2, done.stderr
                assert (await one.run(FINE)).stdout == "fresh\n"
            after = await one.handle.status()
            assert after.pid == before.pid  # the same worker, its books kept
            assert after.launches == 3

    asyncio.run(story())


def test_a_fault_that_nobody_waited_for_is_not_left_to_the_next_program() -> None:
    wild = "begin(); d.cuLaunchKernel(load(WILD, b'wild'), 1,1,1, 1,1,1, 0, 0, 0, 0); sys.stdout.flush(); os._exit(0)"

    async def story() -> None:
        async with worker() as one:
            for _ in range(3):
                assert (await one.run(wild)).returncode == 0
                done = await one.run(FINE)
                assert done.stdout == "fresh\n", done.stderr

    asyncio.run(story())


def test_a_module_loaded_where_another_was_has_its_own_parameters() -> None:
    code = """begin()
one = ok(d.cuModuleLoadData(STORE_U32 + b"\\0")); two = STORE_PAIR + b"\\0"
a = ok(d.cuMemAlloc(64))
for i in range(4):
    module = ok(d.cuModuleLoadData(STORE_U32 + b"\\0")); f = ok(d.cuModuleGetFunction(module, b"store"))
    ok(d.cuLaunchKernel(f, 1,1,1, 1,1,1, 0, 0, ((int(a), 7), (ctypes.c_uint64, ctypes.c_uint32)), 0)); ok(d.cuCtxSynchronize()); ok(d.cuModuleUnload(module))
    module = ok(d.cuModuleLoadData(two)); f = ok(d.cuModuleGetFunction(module, b"store"))
    ok(d.cuLaunchKernel(f, 1,1,1, 1,1,1, 0, 0, ((11 + i, int(a) + 8, 13 + i), (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)), 0)); ok(d.cuCtxSynchronize()); ok(d.cuModuleUnload(module))
    out = bytearray(24); ok(d.cuMemcpyDtoH(out, a, 24)); print(int.from_bytes(out[:4], "little"), int.from_bytes(out[8:16], "little"), int.from_bytes(out[16:], "little"))
"""

    async def story() -> None:
        async with worker() as one:
            done = await one.run(code)
            assert done.stdout.split("\n")[:-1] == [f"7 {11 + i} {13 + i}" for i in range(4)], done.stderr

    asyncio.run(story())


def test_each_device_of_a_lease_has_its_own_kernels() -> None:
    code = """ok(d.cuInit(0)); out = bytearray(24)
contexts = [ok(d.cuDevicePrimaryCtxRetain(i)) for i in (0, 1)]
for context, ptx in zip(contexts, (STORE_U32, STORE_PAIR)):  # both workers number their first kernel alike
    ok(d.cuCtxSetCurrent(context)); f = load(ptx, b"store"); a = ok(d.cuMemAlloc(24)); ok(d.cuMemsetD8(a, 0, 24))
    values, kinds = ((int(a), 7), (ctypes.c_uint64, ctypes.c_uint32)) if ptx is STORE_U32 else ((11, int(a), 13), (ctypes.c_uint64,) * 3)
    ok(d.cuLaunchKernel(f, 1,1,1, 1,1,1, 0, 0, (values, kinds), 0)); ok(d.cuMemcpyDtoH(out, a, 24)); print(list(out))
"""

    async def story() -> None:
        async with worker() as one, worker(secret=one.secret) as two:
            done = await one.run(code, second=two)
            first, second = [0] * 24, [0] * 24
            first[0], second[0], second[8] = 7, 11, 13
            assert done.stdout == f"{first}\n{second}\n", done.stderr

    asyncio.run(story())


def test_the_answer_that_carries_an_earlier_error_has_made_nothing() -> None:
    code = """begin(); d.cuMemFree(12345); before = d.cuMemAlloc(1 << 20)[0].name; print(before, d.cuMemGetInfo()[1:])
d.cuMemFree(12345); print(d.cuModuleLoadData(WILD + b"\\0")[0].name, ok(d.cuMemAlloc(1 << 20)) is not None)
"""

    async def story() -> None:
        async with worker(memory_mib=4) as one:
            done = await one.run(code)
            bad = "CUDA_ERROR_INVALID_VALUE"
            assert done.stdout == f"{bad} ({4 * MIB}, {4 * MIB})\n{bad} True\n", done.stderr

    asyncio.run(story())


def test_a_module_s_variables_count_against_the_cap_until_it_is_unloaded() -> None:
    code = """begin()
def variable(mib): return b'.version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .global .align 4 .b8 big[%d];\\n.visible .entry k() { ret; }\\0' % (mib << 20)
print(d.cuModuleLoadData(variable(64))[0].name, d.cuLibraryLoadData(variable(64), [], [], 0, [], [], 0)[0].name, d.cuMemGetInfo()[1] >> 20)
module = ok(d.cuModuleLoadData(variable(6))); address, size = ok(d.cuModuleGetGlobal(module, b"big"))
print(d.cuMemGetInfo()[1] >> 20, size >> 20, d.cuMemAlloc(5 << 20)[0].name); ok(d.cuMemsetD8(address, 1, size))
ok(d.cuModuleUnload(module)); print(d.cuMemGetInfo()[1] >> 20); d.cuMemsetD8(address, 1, size); print(d.cuCtxSynchronize()[0].name)
"""

    async def story() -> None:
        async with worker(memory_mib=10) as one:
            done = await one.run(code)
            oom = "CUDA_ERROR_OUT_OF_MEMORY"
            assert done.stdout == f"{oom} {oom} 10\n4 6 {oom}\n10\nCUDA_ERROR_INVALID_VALUE\n", done.stderr
            await until(lambda: unused(one))

    asyncio.run(story())


def test_the_heap_of_kernels_is_part_of_the_slice() -> None:
    code = """begin(); HEAP = d.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE
print(d.cuCtxSetLimit(HEAP, 64 << 20)[0].name, ok(d.cuCtxGetLimit(HEAP)) >> 20)
ok(d.cuCtxSetLimit(HEAP, 20 << 20)); print(d.cuMemGetInfo()[1] >> 20, ok(d.cuCtxGetLimit(HEAP)) >> 20, d.cuMemAlloc(15 << 20)[0].name)
"""

    async def story() -> None:
        async with worker(memory_mib=32) as one:
            done = await one.run(code)
            oom = "CUDA_ERROR_OUT_OF_MEMORY"
            assert done.stdout == f"{oom} 8\n12 20 {oom}\n", done.stderr
            await until(lambda: unused(one))  # and the next program finds the usual heap
            again = await one.run(
                "begin(); print(ok(d.cuCtxGetLimit(d.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE)) >> 20)"
            )
            assert again.stdout == "8\n"

    asyncio.run(story())


def test_a_weight_that_was_changed_outlives_a_fault() -> None:
    wild = "begin(); d.cuLaunchKernel(load(WILD, b'wild'), 1,1,1, 1,1,1, 0, 0, 0, 0); d.cuCtxSynchronize()"

    async def story() -> None:
        async with worker() as one:
            await one.handle.limit(32 * MIB, 0.25)
            await one.run(wild)
            assert (await one.run(FINE)).stdout == "fresh\n"  # by the worker that began anew
            words = command_line(one.handle.pid)
            assert float(words[words.index("--weight") + 1]) == 0.25
            assert (await one.handle.status()).memory_limit_bytes == 32 * MIB

    asyncio.run(story())


def test_the_stop_reason_is_the_sentence_that_the_program_prints_once() -> None:
    code = "begin(); print('in', flush=True); sys.stdin.readline(); print([d.cuCtxSynchronize()[0].name for _ in range(3)])"

    async def story() -> None:
        async with worker() as one:
            program = one.start(code)
            assert program.stdout is not None
            await asyncio.to_thread(program.stdout.readline)
            await one.handle.stop("course ml101 took the slice back")
            await one.handle.wait()
            out, said = await asyncio.to_thread(program.communicate, "\n")
            assert out.count("CUDA_ERROR_DEVICE_UNAVAILABLE") == 3
            assert said.count("course ml101 took the slice back") == 1
            assert program.returncode == 0

    asyncio.run(story())


def test_a_worker_tells_python_what_its_slice_has_used() -> None:
    async def story() -> None:
        async with worker() as one:
            assert (await one.run("begin(); ok(d.cuMemAlloc(5 << 20)); print(1)")).stdout == "1\n"
            await until(lambda: unused(one))
            for kind in ("unix", "tcp"):  # the handshake is spoken there, too
                endpoints = [each for each in one.handle.endpoints if each.startswith(kind)]
                use = await asyncio.to_thread(usage_of, endpoints, one.secret)
                limit = (await one.handle.status()).memory_limit_bytes
                assert (use.used_bytes, use.peak_bytes >= 5 * MIB, use.limit_bytes) == (0, True, limit)

    asyncio.run(story())


def test_limits_change_live_and_never_below_what_is_allocated() -> None:
    code = "begin(); a = ok(d.cuMemAlloc(6 << 20)); print('has', flush=True); sys.stdin.readline(); print(d.cuMemGetInfo()[1:])"

    async def story() -> None:
        async with worker(memory_mib=8) as one:
            program = one.start(code)
            assert program.stdout is not None
            await asyncio.to_thread(program.stdout.readline)
            with pytest.raises(ValueError, match=str(6 * MIB)):
                await one.handle.limit(5 * MIB, 1.0)
            await one.handle.limit(20 * MIB, 1.0)
            out, _ = await asyncio.to_thread(program.communicate, "\n")
            assert out == f"({14 * MIB}, {20 * MIB})\n"

    asyncio.run(story())


def test_a_forked_child_gets_an_error_does_not_hang_and_does_not_keep_the_slice_busy() -> None:
    code = """begin(); ok(d.cuMemAlloc(1024))
sys.stdout.flush()
if (child := os.fork()) == 0:
    os.write(1, f"{d.cuInit(0)[0].name} {d.cuMemAlloc(1024)[0].name}\\n".encode())
    sys.stdin.readline(); os._exit(0)
ok(d.cuCtxSynchronize()); os.write(1, b"parent goes on\\n"); os._exit(0)
"""

    async def story() -> None:
        async with worker() as one:
            program = one.start(code)
            assert program.stdout is not None
            lines = {await asyncio.to_thread(program.stdout.readline) for _ in range(2)}
            assert lines == {"CUDA_ERROR_NOT_INITIALIZED CUDA_ERROR_NOT_INITIALIZED\n", "parent goes on\n"}
            await until(lambda: unused(one))  # though the child still lives
            assert await asyncio.to_thread(program.wait, 20) == 0
            await asyncio.to_thread(program.communicate, "\n")

    asyncio.run(story())


def test_many_threads_use_one_connection() -> None:
    code = """begin(); context = ok(d.cuCtxGetCurrent()); bad = []
def work(n):
    ok(d.cuCtxSetCurrent(context))
    for i in range(50):
        a = ok(d.cuMemAlloc(4096)); ok(d.cuMemsetD8(a, n, 4096)); out = bytes(4096)
        ok(d.cuMemcpyDtoH(out, a, 4096)); ok(d.cuMemFree(a))
        if set(out) != {n}: bad.append((n, i))
threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 9)]
[t.start() for t in threads]; [t.join() for t in threads]; print(bad)
"""

    async def story() -> None:
        async with worker() as one:
            done = await one.run(code)
            assert done.stdout == "[]\n", done.stderr

    asyncio.run(story())


@pytest.mark.parametrize(
    "memory", ["int(ok(d.cuMemAlloc(size)))", "reserve(size); mapped(p, size)"], ids=["allocated", "mapped"]
)
def test_large_copies_arrive_whole_however_they_travel(memory: str) -> None:
    """The host reaches what is allocated; what is mapped is copied by the driver."""
    code = f"""import numpy as np
size, n = 20 << 20, 20_000_003; p = {memory}
a = np.random.default_rng(1).integers(0, 256, n, dtype=np.uint8); b = np.empty_like(a)
ok(d.cuMemcpyHtoD(p, a.ctypes.data, n)); ok(d.cuMemcpyDtoH(b.ctypes.data, p, n)); print((a == b).all())
"""

    async def story() -> None:
        async with worker() as one:
            for kind, shared in (("unix", True), ("unix", False), ("tcp", False)):
                done = await one.run(MEMORY + code, kind=kind, shared_memory=shared)
                assert done.stdout == "True\n", (kind, shared, done.stderr)

    asyncio.run(story())


def test_copies_of_every_length_and_offset_arrive_whole_and_touch_nothing_beside() -> None:
    code = """import numpy as np
begin(); room = 40_000; p = int(ok(d.cuMemAlloc(room))); a = np.random.default_rng(1).integers(1, 256, room, dtype=np.uint8)
wrong = []
for n in (1, 63, 64, 2047, 2048, 2049, 2111, 2175, 2176, 16383, 16384, 16385, 33_001):
    for here in (0, 1, 15, 16, 63, 64, 100):
        for there in (0, 1, 16, 65):
            b = np.zeros(room, np.uint8); ok(d.cuMemsetD8(p, 0, room))
            ok(d.cuMemcpyHtoD(p + there, a.ctypes.data + here, n)); ok(d.cuMemcpyDtoH(b.ctypes.data + here, p + there, n))
            whole = np.zeros(room, np.uint8); ok(d.cuMemcpyDtoH(whole.ctypes.data, p, room))
            right = (b[here:here + n] == a[here:here + n]).all() and not b[:here].any() and not b[here + n:].any()
            if not (right and not whole[:there].any() and not whole[there + n:].any()): wrong.append((n, here, there))
print(wrong)
"""

    async def story() -> None:
        async with worker() as one:
            for kind, shared in (("unix", True), ("unix", False)):
                done = await one.run(code, kind=kind, shared_memory=shared)
                assert done.stdout == "[]\n", (kind, shared, done.stderr)

    asyncio.run(story())


def test_streams_and_events_have_names_of_their_own_and_keep_order() -> None:
    code = """begin(); a = ok(d.cuMemAlloc(1 << 20)); s = ok(d.cuStreamCreate(0)); e, f = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
ok(d.cuEventRecord(e, s)); [ok(d.cuMemsetD8Async(a, i, 1 << 20, s)) for i in range(50)]; ok(d.cuEventRecord(f, s)); ok(d.cuEventSynchronize(f))
out = bytes(1 << 20); ok(d.cuMemcpyDtoH(out, a, 1 << 20)); print(set(out), ok(d.cuEventElapsedTime(e, f)) > 0)
ok(d.cuStreamDestroy(s)); d.cuEventRecord(e, s); print(d.cuCtxSynchronize()[0].name)
"""

    async def story() -> None:
        async with worker() as one:
            assert (await one.run(code)).stdout == "{49} True\nCUDA_ERROR_INVALID_HANDLE\n"

    asyncio.run(story())


def test_what_cannot_be_done_says_not_supported_and_stays_silent() -> None:
    code = """begin(); memory, signal = d.CUDA_EXTERNAL_MEMORY_HANDLE_DESC(), d.CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC()
print(d.cuImportExternalMemory(memory)[0].name, d.cuImportExternalSemaphore(signal)[0].name)"""

    async def story() -> None:
        async with worker() as one:
            done = await one.run(code)
            assert done.stdout.split() == ["CUDA_ERROR_NOT_SUPPORTED"] * 2
            assert done.stderr == ""

    asyncio.run(story())


def test_a_worker_without_agent_and_programs_ends_by_itself_but_not_while_it_is_used() -> None:
    async def story() -> None:
        async with worker(orphan_seconds=4) as one:
            program = one.start("begin(); print('in', flush=True); sys.stdin.readline()")
            assert program.stdout is not None
            await asyncio.to_thread(program.stdout.readline)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(one.handle.wait(), 5)
            await asyncio.to_thread(program.communicate, "\n")
            await asyncio.wait_for(one.handle.wait(), 20)
            assert (
                "this worker ends: it has not heard of its agent for 4 s"
                in (one.folder / "worker.log").read_text()
            )

    asyncio.run(story())


def test_a_later_agent_adopts_a_living_worker_and_finds_no_dead_one() -> None:
    async def story() -> None:
        async with worker() as one:
            adopted = await adopt_worker(one.folder)
            assert adopted is not None
            assert (adopted.pid, adopted.endpoints) == (one.handle.pid, one.handle.endpoints)
            await adopted.stop("over")
            await adopted.wait()
            assert await adopt_worker(one.folder) is None

    asyncio.run(story())


def test_the_secret_is_in_no_command_line_environment_or_log_and_files_are_private() -> None:
    async def story() -> None:
        async with worker() as one:
            one.environment()
            process = Path(f"/proc/{one.handle.pid}")
            seen = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            seen += (one.folder / "worker.log").read_bytes()
            assert one.secret.encode() not in seen
            for private in [
                one.folder / "control.sock",
                one.folder / "worker.log",
                *one.folder.glob("lease-*"),
            ]:
                assert stat.S_IMODE(private.stat().st_mode) == 0o600

    asyncio.run(story())


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    async def start(library: str) -> None:
        await start_worker(
            library=library,
            device=0,
            memory_bytes=MIB,
            weight=1,
            lease_id="x",
            secret="0" * 64,
            directory=tmp_path,
        )

    with pytest.raises(WorkerStartFailed, match="cannot be loaded"):
        asyncio.run(start("/nowhere/libcuda.so.1"))
    with pytest.raises(WorkerStartFailed, match="could not be listed"):
        list_devices("/nowhere/libcuda.so.1")


def test_devices_are_those_of_the_library() -> None:
    found = list_devices(native.simgpu_library(), {**os.environ, "GPUKERNEL_SIMGPU": "v100:2,h200"})
    assert [(d.name, d.memory_bytes >> 30, d.compute_capability) for d in found] == [
        ("Tesla V100-SXM2-32GB (simulated)", 32, "7.0"),
        ("Tesla V100-SXM2-32GB (simulated)", 32, "7.0"),
        ("NVIDIA H200 (simulated)", 141, "9.0"),
    ]
    assert len({d.uuid for d in found}) == 3


def test_control_lines_that_make_no_sense_get_an_answer() -> None:
    async def story() -> None:
        async with worker() as one:
            with socket.socket(socket.AF_UNIX) as control:
                control.connect(str(one.folder / "control.sock"))
                control.sendall(b"dance\nlimit many\n\nstatus\n")
                answers = [json.loads(line) for line in control.makefile().__next__().splitlines()]
            assert answers[0]["ok"] is False
            assert (await one.handle.status()).pid == one.handle.pid

    asyncio.run(story())


def test_a_compilers_own_cubin_and_fat_binary_pass_the_check_of_images() -> None:
    """The simulated device refuses them for what they are, not for being cut short."""
    code = """from cuda.bindings import nvrtc
import struct
def build(*options):
    _, program = nvrtc.nvrtcCreateProgram(b'extern "C" __global__ void k(int* p) { __shared__ int s[64]; s[threadIdx.x] = 1; __syncthreads(); *p = s[1]; }', b"k.cu", 0, [], [])
    assert int(nvrtc.nvrtcCompileProgram(program, len(options), list(options))[0]) == 0
    return program
program = build(b"--gpu-architecture=sm_80"); cubin = bytes(ok(nvrtc.nvrtcGetCUBINSize(program))); ok(nvrtc.nvrtcGetCUBIN(program, cubin))
entry = struct.pack("<HHIQ", 2, 0x101, 64, len(cubin)).ljust(64, b"\\0") + cubin
fat = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry
begin(); print(d.cuModuleLoadData(cubin)[0].name, d.cuModuleLoadData(fat)[0].name)"""

    async def story() -> None:
        async with worker() as one:
            done = await one.run(code)
            assert done.stdout.split() == ["CUDA_ERROR_NO_BINARY_FOR_GPU"] * 2, done.stderr

    asyncio.run(story())
