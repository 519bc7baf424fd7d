"""``%gpu`` in real kernels on a real pool."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpukernel.jupyter import kernelspecs
from tests.conftest import Pool, eventually
from tests.jupyter.conftest import Kernel
from tests.jupyter.test_kernel_lease import LOOK

ALLOCATE = "from cuda.bindings import driver as d; d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])\n"


@pytest.fixture
def kernel(
    own_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Kernel]]:
    monkeypatch.setenv("GPUKERNEL_STATE", str(own_pool.state))
    for kind in ("DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / kind.lower()))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    running: list[Kernel] = []

    def start(share: float = 0.02) -> Kernel:
        monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
        spec = kernelspecs.SliceSpec(share, wait_seconds=60)
        kernelspecs.write(spec, tmp_path / "data" / "kernels")
        running.append(Kernel(spec.name))
        return running[-1]

    yield start
    for one in running:
        one.end()


def test_gpu_shows_the_slice_and_its_use(kernel: Callable[..., Kernel]) -> None:
    one = kernel()
    one.run(ALLOCATE + "d.cuMemAlloc(100 << 20)")
    said = one.run("%gpu\nprint(_gpu) if False else print(get_ipython().run_line_magic('gpu', ''))")
    assert re.search(r"V100 × 0\.02 on \S+/0, Tesla V100", said)
    assert "100 MiB of 655 MiB" in said
    assert "no end set" in said


def test_a_cell_is_measured(kernel: Callable[..., Kernel]) -> None:
    one = kernel()
    one.run(
        "import numpy as np\nfrom numba import cuda\n"
        "@cuda.jit\ndef double(x):\n    i = cuda.grid(1)\n    if i < x.size:\n        x[i] *= 2\n"
        "data = np.ones(1 << 20, np.float32)"
    )
    said = one.run(
        "%%gpu\non = cuda.to_device(data)\nfor _ in range(3): double[4096, 256](on)\nprint(on.copy_to_host().sum())"
    )
    assert said.startswith("8.388608e+06\n")
    assert re.search(
        r"peak memory 4 MiB \(1% of the slice\) · 4 MiB to the GPU, 4 MiB back · 3 launches", said
    )
    (spent,) = re.findall(r"GPU time (\d+) ms", said)
    assert int(spent) > 0
    again = one.run("%%gpu\npass")  # only what this cell did
    assert re.search(r"GPU time 0 ms of .*· 0 bytes to the GPU, 0 bytes back · 0 launches", again)


def test_a_cell_s_kernels_are_profiled(kernel: Callable[..., Kernel]) -> None:
    one = kernel()
    one.run(
        "import numpy as np\nfrom numba import cuda\n"
        "@cuda.jit\ndef double(x):\n    i = cuda.grid(1)\n    if i < x.size:\n        x[i] *= 2\n"
        "data = cuda.to_device(np.ones(1000, np.float32)); double[4, 256](data)"
    )
    shown: list[dict[str, str]] = []
    one.client.execute_interactive(
        "%%gpu profile figures\nfor _ in range(5): double[4, 256](data)",
        timeout=60,
        output_hook=lambda message: shown.append(message["content"].get("data", {})),
    )
    (picture,) = [data for data in shown if "text/html" in data]
    assert "<svg" in picture["text/html"]
    assert re.search(r"^double +256 +5 ", picture["text/plain"], re.MULTILINE)
    # 1,000 elements are 31 warps and a quarter of one; the last warp's other threads leave at the bound.
    counts = "one, = figures.data()['kernels']; print([one[n] for n in ('launches', 'load_requests', 'load_bytes', 'sectors_per_load', 'divergent')])"
    assert one.run(counts) == "[5, 160, 20000, 3.90625, 5]\n"
    assert "is not understood; write %%gpu" in one.run("%%gpu profil\npass")


def test_the_memory_check_changes_with_the_next_launch(kernel: Callable[..., Kernel]) -> None:
    past = """
text = b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry k(.param .u64 p) { .reg .b64 %rd<2>; .reg .b32 %r<2>; ld.param.u64 %rd1, [p]; ld.global.u32 %r1, [%rd1+100]; ret; }\\0"
import ctypes; function = d.cuModuleGetFunction(d.cuModuleLoadData(text)[1], b"k")[1]
def past():
    value = ctypes.c_uint64(int(d.cuMemAlloc(100)[1])); pointers = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, ctypes.addressof(pointers), 0); print(d.cuCtxSynchronize()[0].name)
past()"""
    one = kernel()
    assert "Memory check: hardware" in one.run("%gpu memcheck")
    assert "“loose” is no memory check" in one.run("%gpu memcheck loose")
    said = one.run(ALLOCATE + past)
    assert "CUDA_SUCCESS" in said
    assert "gpukernel: warning: Out-of-bounds __global__ read" in said
    assert "Memory check: strict" in one.run("%gpu memcheck strict")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in one.run("past()")


def test_a_measured_cell_that_fails_fails(kernel: Callable[..., Kernel]) -> None:
    one = kernel()
    reply = one.client.execute_interactive("%%gpu\n1 / 0", timeout=60, output_hook=lambda _: None)
    assert reply["content"]["status"] == "error"


def test_release_gives_the_slice_back_and_acquire_gets_another_in_the_same_process(
    kernel: Callable[..., Kernel], own_pool: Pool
) -> None:
    one = kernel()
    one.run(ALLOCATE + "d.cuMemAlloc(100 << 20)")
    assert "No slice now" in one.run("%gpu release\nprint(get_ipython().run_line_magic('gpu', ''))")
    eventually(lambda: own_pool.promised() == 0)
    assert "holds no slice" in one.run("%gpu resize 0.05")
    assert "V100 × 0.05" in one.run("print(get_ipython().run_line_magic('gpu', 'acquire 0.05'))")
    assert own_pool.promised() == 1638 << 20
    assert one.run(ALLOCATE + "print(d.cuMemAlloc(1000 << 20)[0].name)") == "CUDA_SUCCESS\n"
    assert "restart the kernel" in one.run(
        "from numba import cuda\ncuda.current_context()\n%gpu release\nprint(get_ipython().run_line_magic('gpu', 'acquire'))"
    )


def test_resize_changes_the_slice_under_what_is_allocated(
    kernel: Callable[..., Kernel], own_pool: Pool
) -> None:
    one = kernel()
    one.run(ALLOCATE + "at = d.cuMemAlloc(100 << 20)[1]; d.cuMemsetD8(at, 7, 1)")
    resize = "print(get_ipython().run_line_magic('gpu', 'resize {}'))"
    assert "100 MiB of 1,638 MiB" in one.run(resize.format("0.05"))
    assert own_pool.promised() == 1638 << 20
    assert one.run(
        "print(d.cuMemAlloc(1000 << 20)[0].name, d.cuMemcpyDtoH(b := bytearray(1), at, 1)[0].name, b)"
    ) == ("CUDA_SUCCESS CUDA_SUCCESS bytearray(b'\\x07')\n")
    assert "1100 MiB" in one.run("%gpu resize 0.02")  # the pool's figure stands in the refusal
    assert own_pool.promised() == 1638 << 20


def test_the_first_use_of_cuda_asks_again_after_a_release(
    kernel: Callable[..., Kernel], own_pool: Pool
) -> None:
    one = kernel()
    one.run("%gpu release")
    eventually(lambda: own_pool.promised() == 0)
    assert one.run(LOOK) == "CUDA_SUCCESS 655\n"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("resize nonsense", "no size"),
        ("resize 2", "above 0 and up to 1"),
        ("dance", "%gpu has no word “dance”."),
        ("resise 0.05", "did you mean “%gpu resize”?"),
        ("acquire 0.5", r"holds V100 × 0.02 already"),
        ("resize", "Name the new size"),
    ],
)
def test_what_cannot_be_is_a_sentence(shared: Kernel, line: str, sentence: str) -> None:
    said = shared.run(f"%gpu {line}")
    assert re.search(sentence, said)
    assert "Traceback" not in said


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, shared_pool: Pool) -> Iterator[Kernel]:
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")
        patch.setenv("GPUKERNEL_STATE", str(shared_pool.state))
        patch.delenv("PYTEST_CURRENT_TEST", raising=False)
        for kind in ("DATA", "RUNTIME"):
            patch.setenv(f"JUPYTER_{kind}_DIR", str(home / kind.lower()))
        kernelspecs.write(kernelspecs.SliceSpec(0.02, wait_seconds=60), home / "data" / "kernels")
        one = Kernel("gpu-v100-0.02")
        yield one
        one.end()


def test_watch_draws_and_goes_on_while_other_cells_run(shared: Kernel) -> None:
    shared.run("%gpu watch 60")
    request = shared.client.execute(ALLOCATE + "d.cuMemAlloc(300 << 20); import time; time.sleep(2)")
    seen = ""
    while "memory 46%" not in seen:  # 300 of 655 MiB
        message = shared.client.get_iopub_msg(timeout=30)
        if message["msg_type"] == "update_display_data":
            seen = message["content"]["data"]["text/plain"]
            assert "<svg" in message["content"]["data"]["text/html"]
    assert request
    shared.run("%gpu watch stop")


def test_the_end_of_a_lease_is_told_under_the_latest_cell(
    kernel: Callable[..., Kernel], own_pool: Pool
) -> None:
    import asyncio

    from gpukernel.client.pool import PoolClient

    one = kernel()
    one.run("print('the latest')")

    async def end() -> None:
        async with PoolClient(own_pool.address) as client:
            (lease,) = (await client.leases())[0]
            await client.release(lease.id, "it was idle for an hour")

    asyncio.run(end())
    seen = ""
    while "it was idle for an hour" not in seen:
        message = one.client.get_iopub_msg(timeout=30)
        if message["msg_type"] == "stream":
            seen += message["content"]["text"]
    assert "The slice of this kernel is gone" in seen


BUSY = '''
from cuda.bindings import driver as d
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry count(.param .u64 rounds) {
    .reg .u64 %r<3>; .reg .pred %p;
    ld.param.u64 %r1, [rounds]; mov.u64 %r2, 0;
again: add.u64 %r2, %r2, 1; setp.lt.u64 %p, %r2, %r1; @%p bra again; ret;
}
"""
import ctypes, time
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
count = d.cuModuleGetFunction(d.cuModuleLoadData(PTX + b"\\0")[1], b"count")[1]
rounds = 1 << 20
while True:  # as many as take three seconds here
    before = time.monotonic()
    d.cuLaunchKernel(count, 1, 1, 1, 1, 1, 1, 0, 0, ((rounds,), (ctypes.c_uint64,)), 0)
    result = d.cuCtxSynchronize()[0].name
    if time.monotonic() - before > 3 or result != "CUDA_SUCCESS": break
    rounds *= 2
print(result, d.cuMemAlloc(1024)[0].name)
'''


def test_whoever_only_asks_about_a_slice_and_goes_leaves_no_work_behind(
    kernel: Callable[..., Kernel], own_pool: Pool
) -> None:
    """A worker ends work that its program left; a panel that looks at it every so often is no program."""
    import threading

    from gpukernel.jupyter.lease_manager import lease_manager
    from gpukernel.remoting.worker_query import WorkerQuery

    one = kernel()
    lease = lease_manager()._leases[one.manager.kernel_id].lease
    assert lease is not None
    (piece,) = lease.slices
    done, asked = threading.Event(), []

    def look() -> None:
        while not done.wait(0.01):
            with WorkerQuery(piece.endpoints, lease.secret) as query:
                asked.append(query.usage())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        assert one.run(BUSY) == "CUDA_SUCCESS CUDA_SUCCESS\n"
    finally:
        done.set()
        looking.join()
    assert len(asked) > 50
