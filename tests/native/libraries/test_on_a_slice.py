"""Library calls keep the order of streams, are nodes of graphs, are held to the lease's memory, and cost no waiting."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpukernel import native
from gpukernel.remoting.direct_environment import direct_environment
from gpukernel.remoting.environment import shim_environment
from gpukernel.remoting.lease_file import LEASE_FILE_VARIABLE
from tests.native.libraries.conftest import NEEDS_OPENBLAS, ROOT, in_one_process
from tests.native.libraries.device import soname
from tests.real_gpu import cuda_library
from tests.remoting.conftest import PRELUDE, WITHOUT_SANITIZER, Worker, call_number, worker
from tests.remoting.round_trips import counted

BLAS = """
from tests.native.libraries.device import *
from tests.native.libraries.cublas_cases import blas, numbers, scalar
import numpy as np, time
driver = d
begin()
def product(b, c, a, n, beta=0):
    return b('cublasSgemm_v2', 0, 0, n, n, n, scalar(1, np.float32), a.pointer, n, a.pointer, n, scalar(beta, np.float32), c.pointer, n)
"""

pytestmark = NEEDS_OPENBLAS


def on_a_slice(code: str, memory_mib: int = 256, **options: object) -> subprocess.CompletedProcess[str]:
    async def run() -> subprocess.CompletedProcess[str]:
        async with worker(memory_mib=memory_mib, **options) as its:
            return await run_on(its, code)

    return asyncio.run(run())


async def run_on(its: Worker, code: str) -> subprocess.CompletedProcess[str]:
    return await its.run(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{BLAS}\n{code}")


def test_two_handles_on_two_streams_keep_their_order() -> None:
    done = on_a_slice(
        """
streams = [ok(d.cuStreamCreate(1)) for _ in range(2)]
handles = [blas(), blas()]
event = ok(d.cuEventCreate(2))
n = 128
a = Array(np.eye(n, dtype=np.float32) * 2)
cs = [Array(np.eye(n, dtype=np.float32)) for _ in range(2)]
for b, s in zip(handles, streams): b.done('cublasSetStream_v2', ctypes.c_void_p(int(s)))
for turn in range(20):  # each product doubles, and what the other stream made is added in between
    for i in (0, 1):
        b, s, mine, other = handles[i], streams[i], cs[i], cs[1 - i]
        ok(d.cuStreamWaitEvent(s, event, 0))
        b.done('cublasSaxpy_v2', n * n, scalar(1, np.float32), other.pointer, 1, mine.pointer, 1)
        b.done('cublasSscal_v2', n * n, scalar(0.5, np.float32), mine.pointer, 1)
        ok(d.cuEventRecord(event, s))
x, y = 1.0, 1.0
for turn in range(20):
    x = (x + y) / 2; y = (y + x) / 2
for s in streams: ok(d.cuStreamSynchronize(s))
print(all(np.allclose(c.get(), np.eye(n) * v, rtol=1e-6) for c, v in zip(cs, (x, y))))
"""
    )
    assert done.stdout.strip() == "True", done.stderr


def test_a_captured_call_is_a_node_that_each_launch_repeats() -> None:
    done = on_a_slice(
        """
s = ok(d.cuStreamCreate(1))
b = blas()
b.done('cublasSetStream_v2', ctypes.c_void_p(int(s)))
n = 64
a, c = Array(np.eye(n, dtype=np.float32) * 2), Array(np.ones((n, n), np.float32))
ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
b.done('cublasSgemm_v2', 0, 0, n, n, n, scalar(1, np.float32), a.pointer, n, a.pointer, n, scalar(1, np.float32), c.pointer, n)
b.done('cublasSscal_v2', n * n, scalar(2, np.float32), c.pointer, 1)
graph = ok(d.cuStreamEndCapture(s))
before = c.get()
count = int(ok(d.cuGraphGetNodes(graph, 0))[-1])
run = ok(d.cuGraphInstantiate(graph, 0))
other = ok(d.cuStreamCreate(1))
b.library.cublasDestroy_v2(b.handle)  # the graph outlives it
for _ in range(3): ok(d.cuGraphLaunch(run, other))
ok(d.cuStreamSynchronize(other))
wanted = np.ones((n, n))
for _ in range(3): wanted = 2 * (4 * np.eye(n) + wanted)
print(count, (before == 1).all(), np.array_equal(c.get(), wanted))
result = np.zeros(1, np.float32)
again = blas(); again.done('cublasSetStream_v2', ctypes.c_void_p(int(s)))
ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
status = again('cublasSnrm2_v2', n, c.pointer, 1, ctypes.c_void_p(result.ctypes.data))  # it would wait
print(status != 0, int(d.cuStreamEndCapture(s)[0]) != 0)
"""
    )
    assert done.stdout.split("\n")[:2] == ["2 True True", "True True"], done.stderr


@WITHOUT_SANITIZER
@pytest.mark.parametrize("where", ["in one process", "on a slice"])
def test_a_product_beyond_its_memory_is_a_fault_that_names_it(where: str) -> None:
    code = """
b = blas()
a = Array(np.zeros((64, 64), np.float32))
status = b('cublasSgemm_v2', 0, 0, 2048, 2048, 64, scalar(1, np.float32), a.pointer, 2048, a.pointer, 64, scalar(0, np.float32), a.pointer, 2048)
print(status, d.cuCtxSynchronize()[0].name, flush=True)
"""
    if where == "on a slice":
        done = on_a_slice(code)
    else:
        begin = "import ctypes\nfrom cuda.bindings import driver as d\ndef begin():\n ok(d.cuInit(0)); ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0))))\n"
        done = subprocess.run(
            [sys.executable, "-c", begin + BLAS + code],
            cwd=ROOT,
            env=in_one_process(),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert "0 CUDA_ERROR_ILLEGAL_ADDRESS" in done.stdout, done.stdout + done.stderr
    assert re.search(r"cublasSgemm_v2 reaches beyond its memory: [ABC], \d+ bytes at 0x", done.stdout)


def test_addresses_outside_the_lease_and_strange_words_are_refused() -> None:
    """Send words that the program's library never would: the worker answers with an error, and goes on."""
    done = on_a_slice(
        f"""
import struct
b = blas()
a = Array(np.ones((8, 8), np.float32))
class Call(ctypes.Structure):
    _fields_ = [('library', ctypes.c_uint32), ('function', ctypes.c_uint32), ('stream', ctypes.c_void_p), ('arguments', ctypes.c_void_p), ('words', ctypes.c_size_t)]
class Port(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ('queue', 'ask', 'name', 'device')]
cuda = ctypes.CDLL('libcuda.so.1')
cuda.gpukernel_library_port.restype = ctypes.POINTER(Port)
port = cuda.gpukernel_library_port(1).contents
queue = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Call), ctypes.POINTER(ctypes.c_bool))(port.queue)
def send(function, words, library={1 | int(soname("libcublas.so.12").rpartition(".")[2]) << 16}):
    data = (ctypes.c_uint64 * max(len(words), 1))(*[w & (2**64 - 1) for w in words])
    captured = ctypes.c_bool()
    queue(ctypes.byref(Call(library, function, None, ctypes.addressof(data), len(words))), ctypes.byref(captured))
    return d.cuCtxSynchronize()[0].name
name = next(n for n in range(2**40, 2**40 + 64) if send(99999, [n, 0, 0, 0]) != 'CUDA_ERROR_INVALID_HANDLE')
scal = next(f for f in range(400) if send(f, [name, 0, 0, 0, 8, 1, 0x3f800000, a.address]) == 'CUDA_SUCCESS')
print(send(scal, [name, 0, 0, 0, 8, 1, 0x3f800000, a.address]))
print(send(scal, [name, 0, 0, 0, 8, 1, 0x3f800000, 4096]))           # not the lease's
print(send(scal, [name, 0, 0, 0, 8, 1, 0x3f800000]))                 # too few words
print(send(scal, [name, 1, 0, 0, 8, 1, 4096, a.address]))            # a scalar's address that is none
print(send(scal, [name, 0, 4096, 8, 8, 1, 0x3f800000, a.address]))   # a workspace that is none
print(send(scal, [name + 1, 0, 0, 0]), send(99999, [name, 0, 0, 0]), send(0, [], 77), send(0, [name] * 200, 1 | 99 << 16))
print(send({call_number("library_call")}, []), np.array_equal(a.get(), np.ones((8, 8))))
"""
    )
    refused = "CUDA_ERROR_INVALID_VALUE"
    lines = done.stdout.strip().split("\n")
    assert lines[:5] == ["CUDA_SUCCESS", *[refused] * 4], done.stdout + done.stderr
    assert "CUDA_SUCCESS" not in lines[5]
    assert lines[6].endswith("True")


def test_a_program_that_is_killed_leaves_nothing() -> None:
    async def run() -> tuple[int, str]:
        async with worker(memory_mib=256) as its:
            code = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{BLAS}" + (
                "n = 3000\na, c = (Array(np.ones((n, n), np.float32)) for _ in 'ac')\n"
                "handles = [blas() for _ in range(20)]\n"
                "for i in range(200): product(handles[i % 20], c, a, n)\n"
                "ok(d.cuMemcpyDtoH(bytearray(4), int(ok(d.cuMemAlloc(4))), 0))\n"
                "print('queued', flush=True); sys.stdin.read()"
            )
            program = its.start(code)
            assert program.stdout
            line = await asyncio.to_thread(program.stdout.readline)
            assert line == "queued\n", program.stderr and program.stderr.read()
            program.kill()
            await asyncio.to_thread(program.wait)
            after = await run_on(its, "print(ok(d.cuMemGetInfo())[0] >> 20)")
            status = await its.handle.status()
            return status.memory_used_bytes, after.stdout.strip()

    used, free = asyncio.run(run())
    assert used == 0
    assert free == "256"


def test_a_confined_worker_loads_the_library_and_computes() -> None:
    wanted = "no-new-privileges,limits,landlock,system-calls"
    probe = [native.worker_executable(), "--probe", "--library", native.simgpu_library(), "--confine", wanted]
    found = json.loads(subprocess.run(probe, capture_output=True, text=True, check=True).stdout)["rungs"]
    rungs = [one["rung"] for one in found if one["used"]]

    async def run() -> tuple[str, str]:
        async with worker(memory_mib=256, confinement=["--confine", ",".join(rungs)]) as its:
            done = await run_on(
                its,
                "b = blas(); n = 600\na, c = (Array(np.eye(n, dtype=np.float32)) for _ in 'ac')\n"
                "print(product(b, c, a, n), np.array_equal(c.get(), np.eye(n)))",
            )
            return done.stdout + done.stderr, (its.folder / "worker.log").read_text()

    output, log = asyncio.run(run())
    assert output.strip() == "0 True", log
    assert "refused" not in log


def test_handles_count_against_the_leases_host_memory() -> None:
    done = on_a_slice(
        """
library = ctypes.CDLL('libcublas.so.12')
made = []
while len(made) < 2000:
    handle = ctypes.c_void_p()
    status = library.cublasCreate_v2(ctypes.byref(handle))
    if status: break
    made.append(handle)
few = len(made)
for handle in made: library.cublasDestroy_v2(handle)
print(0 < few < 2000, status, library.cublasCreate_v2(ctypes.byref(ctypes.c_void_p())))
""",
        host_memory=32 << 20,
    )
    assert done.stdout.strip().endswith("True 3 0"), done.stdout + done.stderr


def test_a_loop_of_products_waits_only_for_the_value_that_is_read() -> None:
    done = on_a_slice(
        """
b = blas()
big = 1500
x, y = (Array(np.ones((big, big), np.float32)) for _ in 'xy')
product(b, y, x, big); ok(d.cuCtxSynchronize())
start = time.perf_counter()
for _ in range(10): product(b, y, x, big)
queued = time.perf_counter() - start
ok(d.cuCtxSynchronize()); whole = time.perf_counter() - start
print(queued < whole / 4, queued, whole)
"""
    )
    assert done.stdout.startswith("True"), done.stdout + done.stderr


def test_after_a_reset_of_the_device_handles_are_made_anew() -> None:
    done = on_a_slice(
        """
from tests.native.libraries.cublaslt_cases import CASES
before = CASES['transformations']()
old = blas()
ok(d.cuDevicePrimaryCtxReset(0)); begin()
a = Array(np.ones(4, np.float32))
print([before, CASES['transformations']()], old('cublasSscal_v2', 4, scalar(2, np.float32), a.pointer, 1) != 0)
b = blas(); b.done('cublasSscal_v2', 4, scalar(2, np.float32), a.pointer, 1)
print((a.get() == 2).all())
"""
    )
    assert done.stdout.split("\n")[:2] == ["['', ''] True", "True"], done.stdout + done.stderr


def test_without_openblas_a_handle_is_refused_with_what_to_do() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import ctypes\nfrom cuda.bindings import driver as d\nd.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])\nprint(ctypes.CDLL('libcublas.so.12').cublasCreate_v2(ctypes.byref(ctypes.c_void_p())))",
        ],
        env=in_one_process(GPUKERNEL_OPENBLAS="/nowhere/libopenblas.so"),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.stdout.strip() == "0":
        pytest.skip("this machine has an OpenBLAS of its own")
    assert done.stdout.strip() == "1"
    assert "pip install 'gpukernel[libraries]'" in done.stderr


@pytest.mark.parametrize(
    ("name", "create", "extra"),
    [
        ("libcublas.so.12", "cublasCreate_v2", "server-cu12"),
        ("libcublas.so.13", "cublasCreate_v2", "server-cu13"),
        ("libcufft.so.11", "cufftCreate", "server-cu12"),
        ("libcudnn.so.9", "cudnnCreate", "server-cu12] or [server-cu13"),
    ],
)
def test_a_server_without_the_programs_library_says_what_to_install(
    name: str, create: str, extra: str, tmp_path: Path
) -> None:
    """The driver lies beside no libraries here, as NVIDIA's does where they were not installed."""
    driver = shutil.copy(cuda_library(), tmp_path / "libcuda.so.1")
    code = f"handle = ctypes.c_void_p(); print(ctypes.CDLL({name!r}).{create}(ctypes.byref(handle)) != 0)"
    done = on_a_slice(code, library=Path(driver))
    assert done.stdout == "True\n"
    assert f"the GPU server has no {name}, which this program needs" in done.stderr
    assert f"its administrator installs gpukernel[{extra}] there" in done.stderr


def test_with_another_libcuda_the_forwarding_library_says_why() -> None:
    environment = in_one_process()
    environment["LD_LIBRARY_PATH"] = f"{native.simgpu_library().parent}:{native.libraries_dir()}"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import ctypes\nprint(ctypes.CDLL('libcublas.so.13').cublasCreate_v2(ctypes.byref(ctypes.c_void_p())))",
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.strip() == "1"
    assert "forwards its calls through gpukernel's libcuda.so.1" in done.stderr


def test_direct_mode_leaves_the_forwarding_libraries_out(tmp_path: Path) -> None:
    base = {"LD_LIBRARY_PATH": f"/before:{native.libraries_dir()}:/behind"}
    on_a_slice = shim_environment(tmp_path / "lease", base)["LD_LIBRARY_PATH"].split(":")
    own = [native.shim_dir(), native.runtime_dir(), native.libraries_dir()]
    assert on_a_slice == [*map(str, own), "/before", "/behind"]
    direct = direct_environment([], {"LD_LIBRARY_PATH": ":".join(on_a_slice)})["LD_LIBRARY_PATH"].split(":")
    assert str(native.libraries_dir()) not in direct
    assert direct[-2:] == ["/before", "/behind"]


def test_objects_and_answers_are_of_the_slice_that_the_process_has_now() -> None:
    """cuBLASLt has one object a device, and what it and cuDNN were asked is kept: neither is another slice's."""
    code = """
import sys
from pathlib import Path
from tests.native.libraries.cublaslt_cases import COMPUTE_32F, Lt
cudnn = ctypes.CDLL('libcudnn.so.9')
def once():
    print([cudnn.cudnnGetVersion() > 90000 for _ in range(9)].count(True), end=' ')
    lt, four = Lt(), [Array(np.full(16, v, np.float32)) for v in (1, 2, 0)]
    layout, operation, preference, count = lt.layout(np.float32, 4, 4, 4), lt.operation(COMPUTE_32F, np.float32), ctypes.c_void_p(), ctypes.c_int()
    assert not lt.library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference))
    ask = lambda: lt('cublasLtMatmulAlgoGetHeuristic', operation, layout, layout, layout, layout, preference, 1, ctypes.create_string_buffer(96), ctypes.byref(count))
    a, b, c = ((one, layout) for one in four)
    print(ask(), ask(), count.value, lt.multiply(operation, a, b, c, c, scalar(1, np.float32), scalar(0, np.float32)), four[2].get()[0])
once()
here = Path(os.environ['GPUKERNEL_LEASE_FILE']); here.write_text(Path(OTHER).read_text().replace('lease test', 'lease other'))
begin(); once()
"""

    async def story() -> tuple[subprocess.CompletedProcess[str], int]:
        async with worker() as first, worker() as second:
            other = second.environment(kind="tcp", shared_memory=False)
            with counted(other) as counter:
                done = await run_on(first, f"OTHER = {other[LEASE_FILE_VARIABLE]!r}\n{code}")
                return done, counter.answers.of("library_ask")

    done, asked = asyncio.run(story())
    assert done.stdout.splitlines() == ["9 0 0 1 0 8.0"] * 2, done.stderr
    assert asked == 3  # for cuDNN's version, for the object, and once for what it advises


def test_cudnns_version_is_the_servers_before_a_context_exists() -> None:
    """It is asked of the first device once the driver is in use, and not before: a program that looks and then forks could not use CUDA."""
    code = """
cudnn = ctypes.CDLL('libcudnn.so.9')
print(cudnn.cudnnGetVersion() > 90000, d.cuDriverGetVersion()[0].name, d.cuCtxGetCurrent()[0].name)
if os.fork() == 0:
    print(d.cuInit(0)[0].name, flush=True)
    os._exit(0)
os.wait()
ok(d.cuInit(0))
print([cudnn.cudnnGetVersion() > 90000 for _ in range(9)].count(True), int(ok(d.cuCtxGetCurrent())), ok(d.cuDevicePrimaryCtxGetState(0))[1])
"""

    async def story() -> tuple[subprocess.CompletedProcess[str], int]:
        async with worker() as its:
            environment = its.environment(kind="tcp", shared_memory=False)
            with counted(environment) as counter:
                done = await asyncio.to_thread(
                    subprocess.run,
                    [sys.executable, "-u", "-c", PRELUDE + code],
                    env=environment, capture_output=True, text=True, check=False, timeout=120,
                )  # fmt: skip
                return done, counter.answers.of("library_ask")

    done, asked = asyncio.run(story())
    lines = ["True CUDA_SUCCESS CUDA_ERROR_NOT_INITIALIZED", "CUDA_SUCCESS", "9 0 0"]
    assert done.stdout.splitlines() == lines, done.stderr
    assert asked == 1
