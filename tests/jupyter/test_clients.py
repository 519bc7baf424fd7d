"""The same kernel from every client: nbclient, papermill, the console, a Jupyter server; and both notebooks."""

from __future__ import annotations

import ast
import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import nbformat
import papermill
import pexpect
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from gpukernel.common.model import Lease
from gpukernel.jupyter import kernelspecs
from tests.conftest import Pool, eventually

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LOOK = """from cuda.bindings import driver as d
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
print("MiB:", d.cuMemGetInfo()[2] // 2**20)"""


def capture_like_in_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """ipykernel leaves file descriptors alone where it believes to run inside pytest."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")


@pytest.fixture
def kernel(own_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an installed slice kernel of 0.02, on a pool of the test's own."""
    monkeypatch.setenv("GPUKERNEL_STATE", str(own_pool.state))
    for kind in ("DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / kind.lower()))
    kernelspecs.write(kernelspecs.SliceSpec(0.02, wait_seconds=60), tmp_path / "data" / "kernels")
    yield "gpu-v100-0.02"
    eventually(lambda: own_pool.promised() == 0)


def notebook(*cells: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def text_of(cell: nbformat.NotebookNode) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def test_nbclient(kernel: str) -> None:
    done = NotebookClient(notebook(LOOK), kernel_name=kernel).execute()
    assert text_of(done.cells[0]) == "MiB: 655\n"


def test_tools_in_a_notebook_show_its_slice_and_its_kernel(kernel: str) -> None:
    use = LOOK.replace("print(", "d.cuMemAlloc(50 << 20); import os, sys; print(os.getpid()); print(")
    stat, smi = "!{sys.executable} -m gpustat --show-pid | cat", "!{sys.executable} -m gpukernel.cli smi"
    cells = NotebookClient(notebook(use, stat, smi), kernel_name=kernel).execute().cells
    pid, *_ = text_of(cells[0]).split()
    stat, smi = (re.sub(r"\x1b\[[0-9;]*m", "", text_of(cell)) for cell in cells[1:])
    assert "50 /   655 MB" in stat
    assert f"/{pid}(50M)" in stat
    assert "50 of 655 MiB" in smi
    assert re.search(rf"\b{pid} +50 MiB ", smi)


def test_papermill(kernel: str, tmp_path: Path) -> None:
    nbformat.write(notebook(LOOK), tmp_path / "in.ipynb")
    done = papermill.execute_notebook(
        tmp_path / "in.ipynb", tmp_path / "out.ipynb", kernel_name=kernel, progress_bar=False
    )
    assert text_of(done.cells[0]) == "MiB: 655\n"


def test_jupyter_console(kernel: str) -> None:
    environment = {**os.environ, "TERM": "dumb"}
    arguments = ["-m", "jupyter", "console", "--simple-prompt", "--kernel", kernel]
    console = pexpect.spawn(sys.executable, arguments, env=environment, encoding="utf-8", timeout=60)
    console.expect_exact("In [1]:")
    console.sendline(
        "from cuda.bindings import driver as d; d.cuInit(0); print('MiB:', d.cuDeviceTotalMem(0)[1] // 2**20)"
    )
    console.expect_exact("MiB: 655")
    console.sendline("exit")
    console.expect(pexpect.EOF)


def test_what_a_kernel_prints_on_the_device_stands_in_the_cell(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture_like_in_life(monkeypatch)
    code = (Path(__file__).parents[1] / "e2e" / "programs" / "nvrtc_matmul.py").read_text()
    done = NotebookClient(notebook(code), kernel_name=kernel).execute()
    assert "corner 32.149 of 128\n" in text_of(done.cells[0])


def test_a_killed_worker_is_an_error_in_the_cell_and_a_restart_gets_a_fresh_slice(
    kernel: str, own_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture_like_in_life(monkeypatch)
    manager = KernelManager(kernel_name=kernel)
    manager.start_kernel()
    client = manager.client()
    client.start_channels()

    def run(code: str) -> str:
        client.wait_for_ready(timeout=60)
        said: list[str] = []

        def hear(message: dict[str, dict[str, str]]) -> None:
            if message["msg_type"] == "stream":  # type: ignore[comparison-overlap]
                said.append(message["content"]["text"])

        client.execute_interactive(code, timeout=60, output_hook=hear)
        return "".join(said)

    try:
        assert run(LOOK) == "MiB: 655\n"
        (lease,) = own_pool.live()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if lease.id.encode() in words and words[0].endswith(b"gpukernel-worker"):
                os.kill(int(process.name), signal.SIGKILL)
        said = run("print(d.cuCtxSynchronize()[0].name)")
        assert "CUDA_ERROR_DEVICE_UNAVAILABLE" in said
        # What a library writes to stderr itself may come after the cell's end: a thread of ipykernel brings it.
        while "restart the kernel" not in said:
            said += client.get_iopub_msg(timeout=60)["content"].get("text", "")
        assert run("print(6 * 7)") == "42\n"  # the kernel lives
        eventually(lambda: own_pool.live() == [])
        manager.restart_kernel(now=True)
        assert run(LOOK) == "MiB: 655\n"
        assert own_pool.live()[0].id != lease.id
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["01-first-slice", "02-classification"])
def test_the_notebooks_run_and_the_second_learns(
    kernel: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture_like_in_life(monkeypatch)
    content = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    assert content.metadata.kernelspec.name == kernel
    assert not any(cell.get("outputs") for cell in content.cells)
    done = NotebookClient(
        content, kernel_name=kernel, timeout=120, resources={"metadata": {"path": str(NOTEBOOKS)}}
    ).execute()
    complaints = [o for c in done.cells for o in c.get("outputs", []) if o.get("name") == "stderr"]
    assert complaints == []
    if name == "02-classification":
        (result,) = [o for o in done.cells[-1].outputs if o.output_type == "execute_result"]
        figures = ast.literal_eval(result.data["text/plain"])
        assert figures["test accuracy"] >= 0.9
        assert figures["slice (MiB)"] == 655
        pictures = [o for c in done.cells for o in c.get("outputs", []) if "image/png" in o.get("data", {})]
        assert len(pictures) >= 2


@pytest.mark.slow
def test_the_notebook_gives_the_same_numbers_over_tcp_as_over_the_unix_socket(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpukernel.remoting import lease_file

    write, used = lease_file.write_lease_file, []

    def figures(kind: str) -> dict[str, object]:
        def write_only(path: Path, lease: Lease, *rest: str) -> None:
            slices = tuple(
                replace(piece, endpoints=tuple(e for e in piece.endpoints if e.startswith(kind)))
                for piece in lease.slices
            )
            used.append(slices[0].endpoints)
            write(path, replace(lease, slices=slices), *rest)

        monkeypatch.setattr(lease_file, "write_lease_file", write_only)
        content = nbformat.read(NOTEBOOKS / "02-classification.ipynb", as_version=4)
        path = {"metadata": {"path": str(NOTEBOOKS)}}
        done = NotebookClient(content, kernel_name=kernel, timeout=120, resources=path).execute()
        (result,) = [o for o in done.cells[-1].outputs if o.output_type == "execute_result"]
        found: dict[str, object] = ast.literal_eval(result.data["text/plain"])
        said = "".join(text_of(cell) for cell in done.cells if cell.cell_type == "code")
        pictures = [
            o.data["image/png"]
            for c in done.cells
            for o in c.get("outputs", [])
            if "image/png" in o.get("data", {})
        ]
        assert found.pop("training (s)")
        return {**found, "losses": re.findall("loss .*", said), "pictures": pictures}

    assert figures("unix") == figures("tcp")
    assert list(dict.fromkeys(endpoints[0].split(":")[0] for endpoints in used)) == ["unix", "tcp"]
