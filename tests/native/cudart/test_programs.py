"""Programs of nvcc, linked with the shared CUDA runtime, which check themselves: in process and over the network."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.native.cudart.conftest import Run, in_process, remotely

WAYS = pytest.mark.parametrize("run", [in_process, remotely])
PLAIN = ["launches", "faults", "arrays", "cooperative"]


@WAYS
@pytest.mark.parametrize("name", PLAIN)
def test_a_program_gets_what_the_runtime_promises(name: str, run: Run, compiled: Callable[..., str]) -> None:
    done = run(compiled(name))
    # What the device finds wrong, it says before.
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["ok"]), done.stdout + done.stderr


@pytest.mark.parametrize("options", [(), ("--default-stream", "per-thread")])
@pytest.mark.parametrize("name", ["streams", "graphs"])
def test_streams_and_graphs_on_a_slice(
    name: str, options: tuple[str, ...], compiled: Callable[..., str]
) -> None:
    """The simulated GPU itself has no pools and graphs: the shim makes them."""
    done = remotely(compiled(name, *options))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@WAYS
def test_relocatable_code_is_linked_when_it_is_used(run: Run, compiled: Callable[..., str]) -> None:
    done = run(compiled("relocatable", "-rdc=true"))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@WAYS
def test_managed_variables_are_shared(run: Run, compiled: Callable[..., str]) -> None:
    done = run(compiled("managed"))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_a_device_keeps_its_variables_while_another_is_reset(compiled: Callable[..., str]) -> None:
    """`cudaDeviceReset` ends what is of the current device (runtime API, “Device Management”)."""
    done = remotely(compiled("two_devices"), devices=2)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


def test_a_program_without_a_driver_is_told(compiled: Callable[..., str]) -> None:
    """With libcuda.so.1 nowhere, or a real one without devices, the first call fails; nothing crashes."""
    done = in_process(compiled("launches"), GPUKERNEL_SIMGPU="none-of-these")
    assert done.returncode == 1
    assert "no CUDA-capable device is detected" in done.stdout
