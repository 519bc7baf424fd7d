"""A kernel's life on a slice, against the real pool: who holds what after each turn."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from gpukernel.client.pool import PoolClient
from gpukernel.common.model import Lease
from gpukernel.embedded import EmbeddedPool
from gpukernel.jupyter import kernelspecs
from gpukernel.jupyter.errors import SliceUnavailable
from gpukernel.jupyter.ports import PORTS
from gpukernel.jupyter.provisioner import notebook_of


@pytest.fixture(scope="module")
def pool() -> Iterator[EmbeddedPool]:
    with EmbeddedPool("v100:1") as running:
        yield running


@pytest.fixture
def start(
    pool: EmbeddedPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., KernelManager]]:
    """Start a kernel of the given share; all of them are shut down afterwards."""
    monkeypatch.delenv("GPUKERNEL_POOL", raising=False)
    monkeypatch.setenv("GPUKERNEL_STATE", str(pool.state))
    for kind in ("DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / kind.lower()))
    running: list[KernelManager] = []

    def start(
        share: float = 0.02, wait: float = 20, environment: dict[str, str] | None = None, priority: str = ""
    ) -> KernelManager:
        spec = kernelspecs.SliceSpec(share, wait_seconds=wait, priority=priority)
        kernelspecs.write(spec, tmp_path / "data" / "kernels")
        manager = KernelManager(kernel_name=spec.name)
        manager.start_kernel(**({"env": {**os.environ, **environment}} if environment else {}))
        running.append(manager)
        return manager

    yield start
    for manager in running:
        manager.shutdown_kernel(now=True)


def held(pool: EmbeddedPool, manager: KernelManager) -> list[Lease]:
    async def ask() -> list[Lease]:
        async with PoolClient(f"unix:{pool.state}/pool.sock") as client:
            return (await client.leases())[0]

    return [lease for lease in asyncio.run(ask()) if lease.key == manager.kernel_id and lease.state == "live"]


def test_a_kernel_holds_a_slice_until_it_is_shut_down(
    pool: EmbeddedPool, start: Callable[..., KernelManager]
) -> None:
    manager = start()
    assert [lease.slices[0].memory_bytes for lease in held(pool, manager)] == [655 * 2**20]
    manager.shutdown_kernel(now=True)
    assert held(pool, manager) == []


def test_a_kernels_slice_has_the_class_of_its_kernelspec(
    pool: EmbeddedPool, start: Callable[..., KernelManager]
) -> None:
    for priority in ("", "batch"):
        (lease,) = held(pool, start(priority=priority))
        assert lease.priority == (priority or "interactive")


def test_the_pool_learns_the_name_of_the_notebook(
    pool: EmbeddedPool, start: Callable[..., KernelManager]
) -> None:
    for session, description in (
        ("/home/anna/course/作业三.ipynb", "作业三.ipynb"),
        ("/home/anna/", ""),  # a session without a name
        ("/home/anna/two\nlines.ipynb", ""),
    ):
        manager = start(environment={"JPY_SESSION_NAME": session})
        (lease,) = held(pool, manager)
        assert lease.holder.description == (description or f"kernel {manager.kernel_id[:8]}")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["/bin/jupyter-nbconvert", "--to", "notebook", "--execute", "unit 1/lesson.ipynb"], "lesson.ipynb"),
        (["/bin/jupyter-execute", "a.ipynb", "b.ipynb"], ""),  # it is one of them
        (["/bin/papermill", "in.ipynb", "out.ipynb", "-p", "x", "1"], "in.ipynb"),
        (["/lib/papermill/__main__.py"], ""),
        (["/bin/jupyter-console", "--kernel", "gpu-v100-0.02"], ""),
    ],
)
def test_the_notebook_that_a_program_executes_is_known(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], name: str
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.delitem(sys.modules, "jupyter_server.serverapp", raising=False)
    assert notebook_of({}) == name
    assert notebook_of({"JPY_SESSION_NAME": "/home/anna/"}) == ""
    # A server's arguments say nothing of its kernels.
    monkeypatch.setitem(sys.modules, "jupyter_server.serverapp", sys)
    assert notebook_of({}) == ""


@pytest.mark.parametrize("share", [0.02, 1.0])
def test_commands_of_the_kernels_environment_work_in_cells_and_numba_keeps_quiet_on_a_part(
    pool: EmbeddedPool, start: Callable[..., KernelManager], share: float
) -> None:
    """``gpukernel``, ``nvitop`` and ``gpustat``, where nobody has activated that environment."""
    client = start(share, environment={"PATH": "/usr/bin:/bin"}).client()
    client.start_channels()
    client.wait_for_ready(60)
    code = "import os; print(os.environ['PATH'], os.environ.get('NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS'))"
    said = "".join(text for name, text in outputs_of(client, code) if name == "stdout").split()
    tools = (
        "import subprocess; print([subprocess.run(c.split(), capture_output=True).returncode for c in %r])"
    )
    commands = ("gpukernel smi", "gpustat", "nvitop --once")
    worked = "".join(text for name, text in outputs_of(client, tools % (commands,)) if name == "stdout")
    client.stop_channels()
    assert worked == "[0, 0, 0]\n"
    assert said[0].startswith(f"/usr/bin:/bin:{Path(sys.executable).parent}")
    assert said[1] == ("0" if share < 1 else "None")


def test_a_restart_keeps_the_lease(pool: EmbeddedPool, start: Callable[..., KernelManager]) -> None:
    manager = start()
    before = held(pool, manager)[0].id
    manager.restart_kernel(now=True)
    assert [lease.id for lease in held(pool, manager)] == [before]


def test_two_kernels_hold_two_slices(pool: EmbeddedPool, start: Callable[..., KernelManager]) -> None:
    first, second = start(), start()
    assert held(pool, first)[0].id != held(pool, second)[0].id


def test_a_kernel_that_dies_by_itself_gives_its_slice_back(
    pool: EmbeddedPool, start: Callable[..., KernelManager]
) -> None:
    manager = start()
    manager.provisioner.process.kill()
    end = time.monotonic() + 30
    while held(pool, manager):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_kernel_that_cannot_be_launched_gives_its_slice_back(
    pool: EmbeddedPool, start: Callable[..., KernelManager], tmp_path: Path
) -> None:
    spec = kernelspecs.SliceSpec(0.02, name="broken")
    kernelspecs.write(spec, tmp_path / "data" / "kernels", python="/nowhere/python")
    manager = KernelManager(kernel_name="broken")
    with pytest.raises(FileNotFoundError):
        manager.start_kernel()
    assert held(pool, manager) == []


def test_an_unreachable_pool_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUKERNEL_POOL", f"unix:{tmp_path}/nobody.sock")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    kernelspecs.write(kernelspecs.STANDARD[0], tmp_path / "kernels")
    with pytest.raises(SliceUnavailable) as error:
        KernelManager(kernel_name="gpu-v100-0.02").start_kernel()
    assert "\n" not in str(error.value)


def test_jupyter_execute_shows_the_sentence_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUKERNEL_POOL", f"unix:{tmp_path}/nobody.sock")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    kernelspecs.write(kernelspecs.STANDARD[0], tmp_path / "kernels")
    notebook = Path(__file__).parents[2] / "notebooks" / "01-first-slice.ipynb"
    done = subprocess.run(
        [sys.executable, "-m", "jupyter", "execute", str(notebook)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "pool" in done.stderr


ENDLESS = '''
from cuda.bindings import driver as d
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry endless() { again: bra again; }
"""
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
kernel = d.cuModuleGetFunction(d.cuModuleLoadData(PTX + b"\\0")[1], b"endless")[1]
d.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
print("runs", flush=True)
d.cuCtxSynchronize()
'''
WORKS = "d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1]); print(d.cuMemAlloc(1024)[0].name)"


def outputs_of(client: BlockingKernelClient, code: str) -> Iterator[tuple[str, str]]:
    """Return what a cell shows: ("stdout", text), ("stderr", text), ("error", name)."""
    request = client.execute(code)
    while True:
        message = client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != request:
            continue
        content = message["content"]
        if message["msg_type"] == "stream":
            yield content["name"], content["text"]
        elif message["msg_type"] == "error":
            yield "error", content["ename"]
        elif message["msg_type"] == "status" and content["execution_state"] == "idle":
            return


def test_interrupting_a_kernel_ends_gpu_work_that_never_ends_and_a_restart_is_fresh(
    pool: EmbeddedPool, start: Callable[..., KernelManager]
) -> None:
    manager = start()
    lease = held(pool, manager)[0].id
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(60)
    cell = outputs_of(client, ENDLESS)
    assert next(cell) == ("stdout", "runs\n")
    manager.interrupt_kernel()
    rest = list(cell)
    assert ("error", "KeyboardInterrupt") in rest
    manager.restart_kernel(now=True)
    client.wait_for_ready(60)
    shown = list(outputs_of(client, "from cuda.bindings import driver as d; " + WORKS))
    assert shown == [("stdout", "CUDA_SUCCESS\n")]
    assert held(pool, manager)[0].id == lease
    client.stop_channels()


def test_restarting_a_kernel_ends_gpu_work_that_never_ends(start: Callable[..., KernelManager]) -> None:
    manager = start()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(60)
    assert next(outputs_of(client, ENDLESS)) == ("stdout", "runs\n")
    manager.restart_kernel(now=True)
    client.wait_for_ready(60)
    shown = list(outputs_of(client, "from cuda.bindings import driver as d; " + WORKS))
    assert shown == [("stdout", "CUDA_SUCCESS\n")]
    client.stop_channels()


def test_nobody_else_gets_a_kernels_ports_before_it_listens_nor_between_two_starts(
    start: Callable[..., KernelManager],
) -> None:
    manager = start()

    def assert_taken() -> None:
        for name in PORTS:
            with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
                stranger.bind((manager.ip, getattr(manager, name)))

    assert_taken()
    assert manager.provisioner is not None
    before = [getattr(manager, name) for name in PORTS]
    manager.provisioner.process.kill()
    manager.provisioner.process.wait()
    assert_taken()
    manager.restart_kernel(now=True)
    assert [getattr(manager, name) for name in PORTS] == before
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=100)
    finally:
        client.stop_channels()
    manager.shutdown_kernel(now=True)
    for name in PORTS:
        with socket.socket() as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # of closed connections
            stranger.bind((manager.ip, getattr(manager, name)))
