"""The watchdog's time: what administrators give, and the default where people share real devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpukernel.agent.inventory import Inventory
from gpukernel.cli.services import SHARED_WATCHDOG_SECONDS, watchdog_or_default
from gpukernel.common.address import short_directory
from gpukernel.embedded import EmbeddedPool
from tests.conftest import Pool, eventually

REAL = Inventory((), "libcuda.so.1")
SIMULATED = Inventory((), "libcuda.so.1", simulated="v100:1")


@pytest.mark.parametrize(
    ("given", "devices", "shared", "seconds"),
    [
        (None, REAL, True, SHARED_WATCHDOG_SECONDS),
        (None, REAL, False, 0),  # one's own device
        (None, SIMULATED, True, 0),  # its kernels are paused when their turn ends
        (0, REAL, True, 0),  # an administrator says: never
        (60, REAL, False, 60),
        (60, SIMULATED, True, 60),
    ],
)
def test_shared_real_devices_have_a_watchdog(
    given: float | None, devices: Inventory, shared: bool, seconds: float
) -> None:
    assert watchdog_or_default(given, devices, shared=shared) == seconds


def _watchdog_of_a_worker(pool: EmbeddedPool) -> str:
    (control,) = Path(short_directory(pool.state), "workers").glob("*/control.sock")
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if str(control.parent) in words:
            return words[words.index("--watchdog-seconds") + 1] if "--watchdog-seconds" in words else "never"
    pytest.fail(f"no worker in {control.parent}")


@pytest.mark.parametrize(("options", "seconds"), [((), "never"), (("--watchdog", "90"), "90.0")])
def test_the_option_reaches_the_workers(tmp_path: Path, options: tuple[str, ...], seconds: str) -> None:
    with Pool("v100:1", tmp_path / "s", options=options) as pool:
        program = pool.start_on_slice("import sys; sys.stdin.readline()")
        try:
            eventually(
                lambda: (
                    pool.live() and list(Path(short_directory(pool.state), "workers").glob("*/control.sock"))
                )
            )
            assert _watchdog_of_a_worker(pool) == seconds
        finally:
            program.communicate("\n", timeout=60)
