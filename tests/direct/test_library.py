"""Direct mode's libcuda.so.1 before a driver that is not the simulated one: a stub with what NVIDIA's has and that lacks."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpukernel import native
from gpukernel.remoting.direct_environment import DriverNotFound, find_driver
from gpukernel.remoting.direct_table import Table
from tests.direct.conftest import MIB

SOURCE = Path(__file__).with_name("stub_driver.cpp")
PRELUDE = """
import ctypes, os, sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
def begin():
    assert cuda.cuInit(0) == 0; assert cuda.cuDevicePrimaryCtxRetain(byref(c_uint64()), 0) == 0
def new(function, *arguments):
    handle = c_uint64(); code = function(byref(handle), *arguments)
    return handle if code == 0 else code
def free():
    free, total = c_size_t(), c_size_t()
    assert cuda.cuMemGetInfo_v2(byref(free), byref(total)) == 0
    return free.value >> 20
def proc(name, version, flags=0):
    function, status = c_void_p(), c_int(9)
    assert cuda.cuGetProcAddress_v2(name, byref(function), version, c_uint64(flags), byref(status)) == 0
    return function.value
def exported(name): return ctypes.cast(getattr(cuda, name), c_void_p).value
def place(address):
    return next(line.split()[-1] for line in open("/proc/self/maps")
                if int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16))
MIB = 1 << 20
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


def compiled(folder: Path, name: str, *options: str) -> Path:
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler is not None
    command = [compiler, "-std=c++17", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{name}", *options]
    subprocess.run([*command, str(SOURCE), "-o", str(folder / name), "-ldl"], check=True)
    return folder / name


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("driver"), "libcuda.so.1")


@pytest.fixture(scope="module")
def stub_with_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    compiled(folder, "libnvidia-ml.so.1", "-DSTUB_NVML")
    return compiled(folder, "libcuda.so.1")


@pytest.fixture
def run(tmp_path: Path, stub: Path) -> Run:
    """Run code on a slice of 100 MiB of the stub's device."""

    def run(
        code: str, driver: Path = stub, memory: int = 100, **more: str
    ) -> subprocess.CompletedProcess[str]:
        directory = tmp_path / "slice"
        directory.mkdir(exist_ok=True)
        (directory / "table").unlink(missing_ok=True)
        facts = struct.pack("<256s16sQ", b"Stub", bytes(range(16)), 1000 * MIB).ljust(1664, b"\0")
        Table.make(directory / "table", memory * MIB, 0.1, None, facts).close()
        lease = tmp_path / "lease"
        lease.write_text(f"version 1\nlease test\nstate live\ndriver {driver}\ndevice 0 direct:{directory}\n")
        return subprocess.run(
            [sys.executable, "-c", PRELUDE + code],
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(native.direct_dir()),
                "GPUKERNEL_LEASE_FILE": str(lease),
                "GPUKERNEL_DRIVER": str(driver),
                **more,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


def out(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")[:-1]


def test_what_is_intercepted_is_found_at_every_version_and_all_else_is_the_drivers(
    run: Run, stub: Path
) -> None:
    said = out(
        run("""
begin()
print([proc(b"cuMemAlloc", v) == exported("cuMemAlloc_v2") for v in (3020, 11080, 12000, 12090)])
print([proc(b"cuMemAllocAsync", 12000, 1) == exported("cuMemAllocAsync"), proc(b"cuMemAllocAsync", 12000, 2) == exported("cuMemAllocAsync_ptsz")])
print(proc(b"cuMemAlloc", 2000), place(proc(b"cuMemAlloc", 14000)))
print(place(proc(b"cuDriverGetVersion", 12000)), place(exported("cuDriverGetVersion")))
print(place(proc(b"cuFromTheFuture", 13010)), ctypes.CFUNCTYPE(c_int, c_int)(proc(b"cuFromTheFuture", 13010))(41))
print(ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t)(proc(b"cuMemAlloc", 12000))(ctypes.addressof(c_uint64()), 101 * MIB))
""")
    )
    ours = str(native.direct_dir() / "libcuda.so.1")
    assert said == [
        "[True, True, True, True]",
        "[True, True]",
        f"None {stub}",  # a version that no header here knows may have other parameters
        f"{stub} {ours}",
        f"{stub} 42",
        "2",
    ]


def test_every_exported_name_jumps_to_the_driver_with_its_arguments(run: Run) -> None:
    said = out(
        run("""
print(cuda.cuMemcpy3D_v2(c_void_p(0x1234)), cuda.cuMemcpyPeerAsync(*map(c_uint64, range(1, 7))), cuda.cuGraphAddKernelNode_v2(None, c_uint64(0), None, c_uint64(4), None))
table = c_void_p()
print(cuda.cuGetExportTable(byref(table), bytes([0x6b] + [0] * 15)), ctypes.cast(table, ctypes.POINTER(c_uint64))[1])
print(cuda.cuGetExportTable(byref(table), bytes(16)), table.value)
print(cuda.cuTexObjectCreate(None, None, None, None), cuda.cuGLGetDevices_v2(None, None, 0, 0))  # the stub lacks them
""")
    )
    assert said == ["77 55 66", "0 4711", "500 None", "801 801"]


def test_managed_memory_arrays_and_a_drivers_calls_of_itself_are_charged_once(run: Run) -> None:
    said = out(
        run("""
begin()
m = new(cuda.cuMemAllocManaged, c_size_t(30 * MIB), 1); print(free())
p = new(cuda.cuMemAllocPitch_v2, byref(c_size_t()), c_size_t(1024), c_size_t(10 << 10), 4); print(free())
import struct
a = new(cuda.cuArray3DCreate_v2, struct.pack("<QQQiII", 1024, 1024, 5, 0x20, 2, 0)); print(free())
b = new(cuda.cuArray3DCreate_v2, struct.pack("<QQQiII", 1024, 1024, 5, 0x20, 2, 0)); print(b)
cuda.cuArrayDestroy(a); cuda.cuMemFree_v2(p); print(free()); cuda.cuDevicePrimaryCtxReset_v2(0); print(free())
""")
    )
    assert said == ["70", "60", "20", "2", "70", "100"]


def test_virtual_memory_counts_until_nobody_holds_or_maps_it(run: Run) -> None:
    said = out(
        run("""
import struct
begin(); prop = struct.pack("<iiiiQ", 1, 0, 1, 0, 0) + bytes(64); host = struct.pack("<iiiiQ", 1, 0, 2, 0, 0) + bytes(64)
h = new(cuda.cuMemCreate, c_size_t(60 * MIB), prop, c_uint64(0)); print(free(), new(cuda.cuMemCreate, c_size_t(60 * MIB), prop, c_uint64(0)))
A = c_uint64(1 << 40)
print(cuda.cuMemMap(A, c_size_t(60 * MIB), c_size_t(0), h, c_uint64(0)), cuda.cuMemRelease(h), free())
again = new(cuda.cuMemRetainAllocationHandle, A); print(cuda.cuMemUnmap(A, c_size_t(60 * MIB)), free())
print(cuda.cuMemRelease(again), free(), type(new(cuda.cuMemCreate, c_size_t(300 * MIB), host, c_uint64(0))).__name__)
""")
    )
    assert said == ["40 2", "0 0 40", "0 40", "0 100 c_ulong"]


def test_pools_are_charged_by_what_they_reserve(run: Run) -> None:
    said = out(
        run("""
begin(); p = [new(cuda.cuMemAllocAsync, c_size_t(20 * MIB), None) for _ in range(2)]; print(free())
print(new(cuda.cuMemAllocAsync, c_size_t(24 * MIB), None).value > 0, free())  # fits into what is reserved
print(new(cuda.cuMemAllocAsync, c_size_t(60 * MIB), None), free())
print(new(cuda.cuMemAllocAsync, c_size_t(30 * MIB), None).value > 0, free())
print(new(cuda.cuMemAllocAsync, c_size_t(3 * MIB), None), free())  # the driver's next piece of 32 MiB is too large
for one in p: cuda.cuMemFreeAsync(one, None)
print(free(), new(cuda.cuMemAlloc_v2, c_size_t(20 * MIB)))
cuda.cuMemPoolTrimTo(c_uint64(7), c_size_t(0)); print(free())
""")
    )
    assert said == ["36", "True 36", "2 36", "True 4", "2 4", "4 2", "36"]


def test_nvml_beside_the_driver_tells_what_contexts_take(run: Run, stub_with_nvml: Path) -> None:
    said = out(run("begin(); print(free())", driver=stub_with_nvml))
    assert said == ["80"]
    small = run(
        "assert cuda.cuInit(0) == 0; print(cuda.cuDevicePrimaryCtxRetain(byref(c_uint64()), 0))",
        driver=stub_with_nvml,
        memory=16,
    )
    assert small.stdout == "2\n"
    assert "a CUDA context alone takes more than is left of this slice of 16 MiB" in small.stderr


def test_the_agent_reads_memory_and_adds_up_compute_from_nvml(stub_with_nvml: Path) -> None:
    code = """
import ctypes, os
ctypes.CDLL(os.environ['GPUKERNEL_DRIVER'])
from types import SimpleNamespace
from gpukernel.agent.processes import Nvml
account = Nvml(SimpleNamespace(uuid=lambda number: 'GPU-'))
for _ in range(2):
    print([(u.pid == os.getpid() or u.pid, u.memory_bytes >> 20, round(u.gpu_seconds, 3)) for u in account.on(0)])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(stub_with_nvml.parent),
            "GPUKERNEL_DRIVER": str(stub_with_nvml),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert out(done) == ["[(1, 77, 0.75), (True, 20, 0.0)]"] * 2


@pytest.mark.parametrize(
    ("driver", "sentence"),
    [
        (lambda: native.direct_dir() / "libcuda.so.1", "is gpukernel's own library, not the NVIDIA driver's"),
        (lambda: Path("libcuda.so.1"), "must be named by its full path"),
        (lambda: Path("/no/such/libcuda.so.1"), "the NVIDIA driver's library cannot be loaded"),
    ],
)
def test_it_never_takes_itself_or_nothing_for_the_driver(
    run: Run, driver: Callable[[], Path], sentence: str
) -> None:
    done = run("print(cuda.cuInit(0), cuda.cuDriverGetVersion(byref(c_int())))", driver=driver())
    assert done.stdout == "100 100\n"
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_driver_is_looked_for_past_our_own_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpukernel.remoting.direct_environment as direct

    monkeypatch.setattr(direct, "_known_to_the_loader", lambda: [native.direct_dir() / "libcuda.so.1"])
    monkeypatch.setattr(direct, "_USUAL", [native.simgpu_library(), tmp_path / "libcuda.so.1"])
    with pytest.raises(DriverNotFound, match="was not found"):
        find_driver({})
    (tmp_path / "libcuda.so.1").touch()
    assert find_driver({}) == tmp_path / "libcuda.so.1"
    with pytest.raises(DriverNotFound, match="GPUKERNEL_DRIVER names"):
        find_driver({"GPUKERNEL_DRIVER": str(tmp_path / "none")})
