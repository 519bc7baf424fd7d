"""NVML in a slice: what an unmodified pynvml sees of a real worker on a simulated V100, and what looking must not do."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpukernel import __version__
from gpukernel.remoting.environment import shim_environment
from gpukernel.remoting.lease_file import write_lease_file
from tests.conftest import Pool, eventually
from tests.nvml.conftest import Tool
from tests.remoting.conftest import MIB, Worker, worker

Tools = Callable[..., Tool]

HOLD = "begin(); a = ok(d.cuMemAlloc({bytes})); print('has', flush=True); sys.stdin.readline()"

COMPILE = """
from cuda.bindings import nvrtc
def kernel(source):
    program = ok(nvrtc.nvrtcCreateProgram(source.encode(), b"k.cu", 0, [], []))
    ok(nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_70"]))
    ptx = b" " * ok(nvrtc.nvrtcGetPTXSize(program)); ok(nvrtc.nvrtcGetPTX(program, ptx))
    return load(ptx, b"k")
"""


def line_of(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


def hold(one: Worker, size: int) -> subprocess.Popen[str]:
    """A program that has `size` bytes until its standard input ends."""
    program = one.start(HOLD.format(bytes=size))
    assert line_of(program) == "has"
    return program


async def until(condition: Callable[[], Any], seconds: float = 20) -> None:
    await asyncio.to_thread(eventually, condition, seconds)


def test_the_device_is_the_slice(tools: Tools) -> None:
    code = """begin(); print(ok(d.cuDeviceGetUuid(0)).bytes.hex(), ok(d.cuDeviceGetName(100, 0)).decode().strip("\\0"), sep="\\n")
print(ok(d.cuDeviceGetPCIBusId(13, 0)).decode().strip("\\0"), ok(d.cuDriverGetVersion()), sep="\\n")"""

    async def story() -> None:
        async with worker(memory_mib=48) as one:
            uuid, name, bus, version = (await one.run(code)).stdout.splitlines()
            tool = tools(one.environment())
            ask = tool.ask
            assert ask("nvmlDeviceGetCount()") == 1
            assert ask("nvmlDeviceGetName(gpu())") == name == "Tesla V100-SXM2-32GB (simulated)"
            assert ask("nvmlDeviceGetUUID(gpu())").removeprefix("GPU-").replace("-", "") == uuid
            assert ask("[len(part) for part in nvmlDeviceGetUUID(gpu()).split('-')]") == [3, 8, 4, 4, 4, 12]
            assert ask("nvmlDeviceGetPciInfo(gpu()).busId") == "0000" + bus
            assert ask("nvmlDeviceGetPciInfo(gpu()).busIdLegacy") == bus
            assert ask("nvmlSystemGetCudaDriverVersion()") == int(version)
            assert ask("nvmlSystemGetDriverVersion()") == __version__
            assert ask("nvmlDeviceGetCudaComputeCapability(gpu())") == [7, 0]
            assert ask("nvmlDeviceGetArchitecture(gpu()) == NVML_DEVICE_ARCH_VOLTA") is True
            assert ask("nvmlDeviceGetNumGpuCores(gpu())") == 80 * 64
            assert ask("nvmlDeviceGetCurrPcieLinkGeneration(gpu())") == 3
            assert ask("nvmlDeviceGetMaxPcieLinkGeneration(gpu())") == 3
            assert ask("nvmlDeviceGetCurrPcieLinkWidth(gpu())") == 16
            assert ask("nvmlDeviceGetMaxPcieLinkWidth(gpu())") == 16
            assert ask("nvmlDeviceGetMaxClockInfo(gpu(), NVML_CLOCK_SM)") == 1530
            memory = "(lambda m: (m.total, m.used, m.free))(nvmlDeviceGetMemoryInfo(gpu(), {}))"
            assert ask(memory.format("")) == [48 * MIB, 0, 48 * MIB]
            assert ask(memory.format("version=nvmlMemory_v2")) == [48 * MIB, 0, 48 * MIB]
            await one.handle.limit(64 * MIB, 1.0)
            assert ask(memory.format("")) == [64 * MIB, 0, 64 * MIB]

    asyncio.run(story())


def test_a_device_is_found_by_every_name_it_has_and_by_no_other(tools: Tools) -> None:
    async def story() -> None:
        async with worker() as one:
            ask = tools(one.environment()).ask
            assert ask("nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID(gpu())))") == 0
            bus = "nvmlDeviceGetPciInfo(gpu()).busId"
            assert ask(f"nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId({bus}))") == 0
            assert ask("nvmlDeviceGetHandleByUUID('GPU-0')") == "NVMLError_NotFound"
            assert ask("nvmlDeviceGetHandleByPciBusId('0000:77:00.0')") == "NVMLError_NotFound"
            assert ask("gpu(1)") == "NVMLError_InvalidArgument"
            assert ask("nvmlDeviceGetName(None)") == "NVMLError_InvalidArgument"

    asyncio.run(story())


def test_programs_are_listed_with_their_memory_while_they_run(tools: Tools) -> None:
    async def story() -> None:
        async with worker(memory_mib=64) as one:
            tool = tools(one.environment())
            assert tool.ask("programs()") == []
            first, second = hold(one, 20 * MIB), hold(one, 3 * MIB)
            expected = sorted([[first.pid, 20 * MIB], [second.pid, 3 * MIB]])
            assert tool.ask("programs()") == expected
            assert tool.ask("nvmlDeviceGetMemoryInfo(gpu()).used") == 23 * MIB
            assert tool.ask(f"nvmlSystemGetProcessName({first.pid})") == first.args[0]  # type: ignore[index]
            assert tool.ask("nvmlSystemGetProcessName(os.getpid())") == "NVMLError_NotFound"
            for version in ("_v3", "_v2", ""):
                assert tool.ask(f"programs_as_of({version!r})") == expected
            assert tool.ask("programs_as_of('_v3', room=1)") == "NVMLError_InsufficientSize"
            first.kill()
            first.communicate()
            await until(lambda: tool.ask("programs()") == [[second.pid, 3 * MIB]])
            second.communicate("\n")
            await until(lambda: tool.ask("programs()") == [])

    asyncio.run(story())


def test_utilisation_is_the_busy_share_of_the_last_second(tools: Tools) -> None:
    code = (
        COMPILE
        + """
spin = kernel('__device__ volatile int x; extern "C" __global__ void k(){ for (int i = 0; i < 20000000; ++i) x = i; }')
stop = threading.Event(); threading.Thread(target=lambda: (sys.stdin.readline(), stop.set())).start()
print("busy", flush=True)
while not stop.is_set():
    ok(d.cuLaunchKernel(spin, 1,1,1, 1,1,1, 0, 0, 0, 0)); ok(d.cuCtxSynchronize())
print("idle", flush=True); sys.stdin.readline()
"""
    )

    async def story() -> None:
        async with worker() as one:
            tool = tools(one.environment())
            use = "nvmlDeviceGetUtilizationRates(gpu()).gpu"
            assert tool.ask(use) == 0
            program = one.start("begin()\n" + code)
            assert line_of(program) == "busy"
            await until(lambda: tool.ask(use) > 60)
            of_it = "[(p.pid, p.smUtil > 60) for p in nvmlDeviceGetProcessUtilization(gpu(), 0)]"
            await until(lambda: tool.ask(of_it) == [[program.pid, True]])
            assert program.stdin is not None
            program.stdin.write("\n")
            program.stdin.flush()
            assert line_of(program) == "idle"
            await until(lambda: tool.ask(use) == 0)
            program.communicate("\n")

    asyncio.run(story())


def test_a_slice_is_part_of_no_fabric(tools: Tools) -> None:
    """PyTorch's expandable segments ask, and warn where there is no answer."""

    async def story() -> None:
        async with worker() as one:
            tool = tools(one.environment())
            info = "c_nvmlGpuFabricInfoV_t()"
            assert (
                tool.ask(f"(nvmlDeviceGetGpuFabricInfoV(gpu(), byref(info := {info})), info.state)[1]") == 0
            )
            assert tool.ask(f"nvmlDeviceGetGpuFabricInfo(gpu(), byref(info := {info})) and info.state") == 0

    asyncio.run(story())


def test_what_is_not_known_is_not_supported(tools: Tools) -> None:
    async def story() -> None:
        async with worker() as one:
            tool = tools(one.environment())
            for question in (
                "nvmlDeviceGetTemperature(gpu(), NVML_TEMPERATURE_GPU)",
                "nvmlDeviceGetPowerUsage(gpu())",
                "nvmlDeviceGetFanSpeed(gpu())",
                "nvmlDeviceGetClockInfo(gpu(), NVML_CLOCK_SM)",
                "nvmlDeviceGetSerial(gpu())",
                "nvmlDeviceGetMigMode(gpu())",
                "nvmlDeviceSetPowerManagementLimit(gpu(), 1)",
            ):
                assert tool.ask(question) == "NVMLError_NotSupported", question
            power = "nvmlDeviceGetFieldValues(gpu(), [NVML_FI_DEV_POWER_INSTANT])[0].nvmlReturn"
            assert tool.ask(power + " == NVML_ERROR_NOT_SUPPORTED") is True
            assert tool.ask("nvmlDeviceGetGraphicsRunningProcesses(gpu())") == []

    asyncio.run(story())


def test_names_by_which_tools_tell_the_layout_of_structures_are_there(tools: Tools) -> None:
    async def story() -> None:
        async with worker() as one:
            tool = tools(one.environment())
            for name in (
                "nvmlDeviceGetConfComputeMemSizeInfo",
                "nvmlDeviceGetRunningProcessDetailList",
                "nvmlDeviceGetComputeRunningProcesses_v3",
                "nvmlDeviceGetComputeRunningProcesses",
                "nvmlInit",
                "nvmlEventSetWait_v2",
                "nvmlDeviceGetGpuFabricInfoV",
            ):
                assert tool.ask(f"bool(sys.modules['pynvml']._nvmlGetFunctionPointer({name!r}))") is True
            missing = "sys.modules['pynvml']._nvmlGetFunctionPointer('nvmlNoSuchName')"
            assert tool.ask(missing) == "NVMLError_FunctionNotFound"

    asyncio.run(story())


# --- looking changes nothing ---


def test_who_only_looks_is_no_program_and_keeps_no_lease_busy(tools: Tools) -> None:
    async def story() -> None:
        async with worker() as one:
            tool = tools(one.environment())
            before = await one.handle.status()
            started = time.monotonic()
            assert tool.ask("in_threads(lambda: nvmlDeviceGetMemoryInfo(gpu()).used, 2, 20)") == [40, [0]]
            assert tool.ask("programs()") == []
            after = await one.handle.status()
            assert (after.connections, after.cuda_calls) == (0, 0)
            passed = time.monotonic() - started
            assert after.idle_seconds >= before.idle_seconds + passed - 0.1

    asyncio.run(story())


def test_a_worker_without_agent_and_programs_ends_though_a_tool_looks_on(tools: Tools) -> None:
    async def story() -> None:
        async with worker(orphan_seconds=4) as one:
            tool = tools(one.environment())
            assert tool.ask("nvmlDeviceGetMemoryInfo(gpu()).used") == 0
            await asyncio.wait_for(one.handle.wait(), 20)
            assert tool.ask("nvmlDeviceGetMemoryInfo(gpu())") == "NVMLError_GpuIsLost"

    asyncio.run(story())


def test_a_fault_is_healed_though_a_tool_looks_on_and_the_tool_finds_the_worker_again(tools: Tools) -> None:
    wild = """begin(); ok(d.cuMemAlloc(1 << 20)); d.cuLaunchKernel(load(WILD, b'wild'), 1,1,1, 1,1,1, 0, 0, 0, 0)
print(d.cuCtxSynchronize()[0].name, flush=True); sys.stdin.readline()"""
    fine = "begin(); a = ok(d.cuMemAlloc(1 << 20)); ok(d.cuMemsetD8(a, 1, 1 << 20)); ok(d.cuCtxSynchronize()); print('fresh')"

    async def story() -> None:
        async with worker() as one:
            tool = tools(one.environment())
            assert tool.ask("nvmlDeviceGetMemoryInfo(gpu()).used") == 0
            faulty = one.start(wild)
            assert "Invalid __global__ write" in line_of(faulty)
            assert line_of(faulty) == "CUDA_ERROR_ILLEGAL_ADDRESS"
            assert tool.ask("programs()") == [[faulty.pid, MIB]]
            assert tools(one.environment()).ask("nvmlDeviceGetName(gpu())") == "NVMLError_GpuIsLost"
            faulty.communicate("\n")
            async with asyncio.timeout(20):
                while (await one.run(fine)).stdout != "fresh\n":
                    pass
            await until(lambda: tool.ask("nvmlDeviceGetMemoryInfo(gpu()).used") == 0)
            holder = hold(one, MIB)
            assert tool.ask("programs()") == [[holder.pid, MIB]]
            holder.communicate("\n")

    asyncio.run(story())


def test_what_device_code_prints_reaches_its_program_though_a_tool_asks_meanwhile(tools: Tools) -> None:
    code = (
        COMPILE
        + """
hello = kernel('extern "C" __global__ void k(){ printf("hello\\\\n"); }')
print("ready", flush=True); sys.stdin.readline()
for i in range(1000): ok(d.cuLaunchKernel(hello, 1,1,1, 1,1,1, 0, 0, 0, 0)); ok(d.cuCtxSynchronize())
"""
    )

    async def story() -> None:
        async with worker() as one:
            tool = tools(one.environment())
            program = one.start("begin()\n" + code)
            assert line_of(program) == "ready"
            printed = asyncio.create_task(asyncio.to_thread(program.communicate, "\n"))
            while not printed.done():
                answer = await asyncio.to_thread(tool.ask, "in_threads(lambda: len(programs()) < 2, 2)")
                assert answer == [100, [True]]
            assert (await printed)[0].count("hello\n") == 1000

    asyncio.run(story())


# --- errors, each silent ---


def test_without_a_slice_there_is_no_driver(tools: Tools, tmp_path: Path) -> None:
    for path in ("", str(tmp_path / "none")):
        environment = shim_environment(Path(path), os.environ)
        assert tools(environment, init=False).ask("nvmlInit()") == "NVMLError_DriverNotLoaded"
    del environment["GPUKERNEL_LEASE_FILE"]
    assert tools(environment, init=False).ask("nvmlInit()") == "NVMLError_DriverNotLoaded"
    over: Any = SimpleNamespace(id="x", state="ended", end_reason="over", secret="0" * 64, slices=[])
    write_lease_file(tmp_path / "over", over)
    ended = shim_environment(tmp_path / "over", os.environ)
    assert tools(ended, init=False).ask("nvmlInit()") == "NVMLError_DriverNotLoaded"


def test_a_dead_or_refusing_worker_is_a_lost_gpu(tools: Tools) -> None:
    async def story() -> None:
        async with worker() as one:
            stranger = tools(one.environment(secret="0" * 64))
            assert stranger.ask("nvmlDeviceGetName(gpu())") == "NVMLError_GpuIsLost"
            tool = tools(one.environment())
            assert tool.ask("nvmlDeviceGetMemoryInfo(gpu()).used") == 0
            one.handle.kill()
            await one.handle.wait()
            for _ in range(3):
                assert tool.ask("nvmlDeviceGetMemoryInfo(gpu())") == "NVMLError_GpuIsLost"
            late = tools(one.environment())
            assert late.ask("nvmlDeviceGetCount()") == 1
            assert late.ask("nvmlSystemGetDriverVersion()") == "NVMLError_GpuIsLost"

    asyncio.run(story())


def test_a_worker_that_does_not_answer_costs_seconds_once_not_at_every_question(tools: Tools) -> None:
    async def story() -> None:
        async with worker() as one:
            tool = tools(one.environment())
            assert tool.ask("nvmlDeviceGetMemoryInfo(gpu()).used") == 0
            os.kill(one.handle.pid, signal.SIGSTOP)
            tasks = Path(f"/proc/{one.handle.pid}/task")
            await until(lambda: all(") T " in (task / "stat").read_text() for task in tasks.iterdir()))
            try:
                times = [time.monotonic()]
                # Of the second and the third: one may come late on a busy machine, and is asked as the first was.
                for question in ("MemoryInfo", "UtilizationRates", "UtilizationRates"):
                    assert tool.ask(f"nvmlDeviceGet{question}(gpu())") == "NVMLError_GpuIsLost"
                    times.append(time.monotonic())
                first, *later = (end - start for start, end in itertools.pairwise(times))
                assert min(later) < first / 2
            finally:
                os.kill(one.handle.pid, signal.SIGCONT)
            await until(lambda: tool.ask("nvmlDeviceGetMemoryInfo(gpu()).used") == 0)

    asyncio.run(story())


# --- the library's own life ---


def test_init_and_shutdown_are_counted_and_begin_again(tools: Tools) -> None:
    async def story() -> None:
        async with worker() as one:
            tool = tools(one.environment(), init=False)
            name = "nvmlDeviceGetName(gpu())"
            assert tool.ask(name) == "NVMLError_Uninitialized"
            assert tool.ask("nvmlShutdown()") == "NVMLError_Uninitialized"
            for _ in range(3):
                assert tool.ask("nvmlInit()") is None
                assert tool.ask("nvmlInitWithFlags(0)") is None
                assert tool.ask(name).startswith("Tesla")
                assert tool.ask("nvmlShutdown()") is None
                assert tool.ask(name).startswith("Tesla")
                assert tool.ask("nvmlShutdown()") is None
                assert tool.ask(name) == "NVMLError_Uninitialized"

    asyncio.run(story())


@pytest.mark.parametrize("kind", ["unix", "tls"])
def test_threads_and_forked_children_ask_side_by_side(tools: Tools, kind: str) -> None:
    async def story() -> None:
        async with worker(memory_mib=32, tls=True) as one:
            tool = tools(one.environment(kind=kind))
            total = "nvmlDeviceGetMemoryInfo(gpu()).total"
            assert tool.ask(f"in_threads(lambda: {total})") == [400, [32 * MIB]]
            assert tool.ask(f"in_child(lambda: {total})") == str(32 * MIB)
            assert tool.ask(total) == 32 * MIB

    asyncio.run(story())


def test_cuda_and_nvml_live_in_one_process(tools: Tools) -> None:
    code = """from pynvml import *
begin(); a = ok(d.cuMemAlloc(5 << 20)); nvmlInit(); gpu = nvmlDeviceGetHandleByIndex(0)
(me,) = nvmlDeviceGetComputeRunningProcesses(gpu)
print(me.pid == os.getpid(), me.usedGpuMemory >> 20, nvmlDeviceGetMemoryInfo(gpu).used >> 20)"""

    async def story() -> None:
        async with worker() as one:
            done = await one.run(code)
            assert (done.stdout, done.stderr) == ("True 5 5\n", "")

    asyncio.run(story())


def test_two_slices_are_two_devices_in_cuda_order(shared_pool: Pool) -> None:
    code = """
from cuda.bindings import driver as d
from pynvml import *
d.cuInit(0); nvmlInit()
for i in range(nvmlDeviceGetCount()):
    d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(i)[1]); assert d.cuMemAlloc((i + 1) << 20)[0] == 0
    gpu = nvmlDeviceGetHandleByIndex(i); uuid = nvmlDeviceGetUUID(gpu)
    same = uuid.replace("-", "")[3:] == d.cuDeviceGetUuid(i)[1].bytes.hex()
    print(nvmlDeviceGetIndex(gpu), nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID(uuid)), same, nvmlDeviceGetMemoryInfo(gpu).used >> 20)
"""
    done = shared_pool.gpukernel("run", "-n", "2", "-m", "16", "--", sys.executable, "-c", code)
    assert done.stdout == "0 0 True 1\n1 1 True 2\n", done.stderr
