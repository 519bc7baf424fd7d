"""``gpukernel top`` against a real pool."""

from __future__ import annotations

from tests.cli.held_slices import hold, over
from tests.conftest import Pool


def test_top_shows_devices_leases_and_queue(gpu1_pool: Pool) -> None:
    program = hold(gpu1_pool)
    shown = gpu1_pool.gpukernel("top", "--every", "0.2", "--times", "2")
    over(program)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("gpu1/1") >= 2
    assert "8.0 GiB" in shown.stdout or "8192 MiB" in shown.stdout
