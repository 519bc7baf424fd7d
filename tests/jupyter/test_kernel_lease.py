"""Kernels in a full pool: they start, their first CUDA call waits, and the cell says where they stand."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import Pool, eventually
from tests.jupyter.conftest import Kernel, read_until

LOOK = (
    "from cuda.bindings import driver as d\nr = d.cuInit(0)[0]\nprint(r.name, d.cuDeviceTotalMem(0)[1] >> 20)"
)


def test_a_kernel_of_a_full_pool_starts_and_its_first_call_waits_until_the_slice_comes(
    start: Callable[..., Kernel], own_pool: Pool
) -> None:
    first, second, third = start(1.0, wait=20), start(), start()
    assert [w.position for w in own_pool.leases()[1]] == [1, 2]
    assert third.run("print(6 * 7)") == "42\n"  # nothing waits but CUDA
    cell = second.cell(LOOK)
    seen = read_until(cell, r"V100 × 0.02: position 1 in the queue")
    other = third.cell(LOOK)
    assert read_until(other, r"position 2 in the queue")
    first.end()
    seen += "".join(cell)
    assert "CUDA_SUCCESS 655\n" in seen
    assert "CUDA_SUCCESS 655\n" in "".join(other)
    line = seen.replace("CUDA_SUCCESS 655\n", "")
    assert re.fullmatch(r"(\rgpukernel: [^\r\n]+)+ {3,}\n", line)  # one line, written over itself
    assert "the slice is here" in line


def test_interrupting_the_waiting_cell_leaves_the_queue_and_running_it_again_queues_again(
    start: Callable[..., Kernel], own_pool: Pool
) -> None:
    first, second = start(1.0, wait=20), start()
    cell = second.cell(LOOK)
    read_until(cell, "position 1")
    second.manager.interrupt_kernel()
    rest = "".join(cell)
    assert "KeyboardInterrupt" in rest
    assert "left the queue" in rest
    assert own_pool.leases()[1] == []
    cell = second.cell(LOOK)
    read_until(cell, "position 1")
    first.end()
    assert "CUDA_SUCCESS 655\n" in "".join(cell)


def test_numba_survives_an_interrupted_wait(start: Callable[..., Kernel]) -> None:
    first, second = start(1.0, wait=20), start()
    code = "from numba import cuda; print(cuda.current_context().get_memory_info()[1] >> 20)"
    cell = second.cell(code)
    read_until(cell, "position 1")
    second.manager.interrupt_kernel()
    assert "KeyboardInterrupt" in "".join(cell)
    first.end()
    # For a second after it left the queue a call does not queue again: a cell makes many of them.
    eventually(lambda: second.run(code).endswith("655\n"))


def test_an_interrupt_of_other_work_keeps_the_place(start: Callable[..., Kernel], own_pool: Pool) -> None:
    _, second = start(1.0, wait=20), start()
    # Not signal.pause(): a signal that comes just before it, while Python gives its lock away, ends nothing.
    cell = second.cell("import time; print('sleeps', flush=True)\nwhile True: time.sleep(0.05)")
    read_until(cell, "sleeps")
    second.manager.interrupt_kernel()
    assert "KeyboardInterrupt" in "".join(cell)
    assert len(own_pool.leases()[1]) == 1


def test_on_first_use_nothing_is_asked_for_before_cuda_is_used(
    start: Callable[..., Kernel], own_pool: Pool
) -> None:
    kernel = start(acquire="on_first_use")
    assert kernel.run("print(6 * 7)") == "42\n"
    assert own_pool.leases() == ([], [])
    said = kernel.run(LOOK)  # a machine that is busy may need so long that a line is drawn
    assert said.endswith("CUDA_SUCCESS 655\n")
    assert "position" not in said
    assert len(own_pool.live()) == 1


def test_a_size_that_no_device_has_is_a_sentence_in_the_cell(start: Callable[..., Kernel]) -> None:
    kernel = start(acquire="on_first_use")
    code = "from gpukernel.jupyter import notebook as n\ntry: n.acquire(0.02, model='B200')\nexcept n.SliceError as e: print(e)"
    assert "no B200" in kernel.run(code)


def test_the_place_survives_a_restart_of_the_kernel_and_of_the_pool(
    start: Callable[..., Kernel], own_pool: Pool
) -> None:
    first, second = start(1.0, wait=20), start()
    second.manager.restart_kernel(now=True)
    second.client.wait_for_ready(60)
    assert len(own_pool.leases()[1]) == 1
    cell = second.cell(LOOK)
    read_until(cell, "position 1")
    own_pool.kill()
    read_until(cell, "the pool does not answer; asking again")
    own_pool.start()
    read_until(cell, "position 1")
    first.end()
    assert "CUDA_SUCCESS 655\n" in "".join(cell)


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(False, id="as JupyterLab restarts it", marks=pytest.mark.thorough),
        pytest.param(True, id="at once"),
    ],
)
def test_a_kernel_that_is_restarted_while_its_cell_waits_keeps_its_place(
    start: Callable[..., Kernel], own_pool: Pool, now: bool
) -> None:
    first, second = start(1.0, wait=20), start()
    (before,) = own_pool.leases()[1]
    cell = second.cell(LOOK)
    read_until(cell, "position 1")
    second.manager.restart_kernel(now=now)
    second.client.wait_for_ready(60)
    assert [one.since for one in own_pool.leases()[1]] == [before.since]
    cell = second.cell(LOOK)
    read_until(cell, "position 1")
    first.end()
    assert "CUDA_SUCCESS 655\n" in "".join(cell)


def test_a_killed_kernel_leaves_the_queue(
    start: Callable[..., Kernel], own_pool: Pool, tmp_path: Path
) -> None:
    _, second = start(1.0, wait=20), start()
    assert len(own_pool.leases()[1]) == 1
    named = f"gpukernel-{second.manager.kernel_id}.lease"
    assert [one.stat().st_mode & 0o777 for one in (tmp_path / "runtime").glob(named)] == [0o600]
    second.manager.provisioner.process.kill()
    eventually(lambda: own_pool.leases()[1] == [])


def test_nbclient_waits_in_its_cell(start: Callable[..., Kernel], own_pool: Pool, tmp_path: Path) -> None:
    first = start(1.0, wait=20)
    start(wait=0.1, acquire="on_first_use")  # writes the kernelspec
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(LOOK)])
    client = NotebookClient(notebook, kernel_name="gpu-0.02-on-first-use", timeout=100)

    import threading

    done = threading.Thread(target=client.execute)
    done.start()

    def text() -> str:
        return "".join(output.get("text", "") for output in notebook.cells[0].outputs)

    eventually(lambda: "position 1" in text())
    first.end()
    done.join(60)
    assert "CUDA_SUCCESS 655\n" in text()


@pytest.mark.slow
def test_the_first_cuda_call_takes_150_ms_at_most(start: Callable[..., Kernel]) -> None:
    times = []
    for _ in range(5):
        kernel = start()
        said = kernel.run(
            "import time; from cuda.bindings import driver as d\n"
            "t = time.perf_counter(); d.cuInit(0); d.cuDeviceTotalMem(0); print(time.perf_counter() - t)"
        )
        times.append(float(said))
        kernel.end()
    assert sorted(times)[2] < 0.15
