"""Kernels on slices of a pool of the test's own, as programs start them that are no Jupyter server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from gpukernel.jupyter import kernelspecs
from tests.conftest import Pool, eventually


class Kernel:
    """A started kernel and a client of it."""

    def __init__(self, name: str) -> None:
        self.manager = KernelManager(kernel_name=name)
        self.manager.start_kernel()
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(60)

    def cell(self, code: str) -> Iterator[str]:
        """Yield what a cell shows, piece by piece."""
        request = self.client.execute(code)
        while True:
            message = self.client.get_iopub_msg(timeout=100)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                yield content["text"]
            elif message["msg_type"] == "error":
                yield f"{content['ename']}: {content['evalue']}"
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return

    def run(self, code: str) -> str:
        return "".join(self.cell(code))

    def end(self) -> None:
        self.client.stop_channels()
        if self.manager.is_alive():
            self.manager.shutdown_kernel(now=True)


@pytest.fixture
def start(own_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Kernel]]:
    """Start a kernel of a share; nothing of them is left afterwards."""
    monkeypatch.setenv("GPUKERNEL_STATE", str(own_pool.state))
    for kind in ("DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / kind.lower()))
    running: list[Kernel] = []

    def start(share: float = 0.02, acquire: str = "at_start", wait: float = 0.1) -> Kernel:
        monkeypatch.delenv(
            "PYTEST_CURRENT_TEST", raising=False
        )  # ipykernel captures file descriptors without it
        name = f"gpu-{share:g}-{acquire.replace('_', '-')}"
        spec = kernelspecs.SliceSpec(share, name=name, wait_seconds=wait, acquire=acquire)
        kernelspecs.write(spec, tmp_path / "data" / "kernels")
        running.append(Kernel(name))
        return running[-1]

    yield start
    for kernel in running:
        kernel.end()
    if own_pool.process is not None and own_pool.process.poll() is None:
        eventually(lambda: own_pool.promised() == 0 and own_pool.leases()[1] == [])
    eventually(lambda: list((tmp_path / "runtime").glob("*.lease")) == [])


def read_until(cell: Iterator[str], pattern: str) -> str:
    seen = ""
    while not re.search(pattern, seen):
        seen += next(cell)
    return seen
